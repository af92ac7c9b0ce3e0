//! `#[job]`: exports a function as the program of the plugin.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, Expr, ExprLit, ItemFn, Lit, Meta, Result};

pub(crate) fn expand(attribute: TokenStream, function: &ItemFn) -> Result<TokenStream> {
    if !attribute.is_empty() {
        return Err(Error::new_spanned(attribute, "#[job] takes no arguments"));
    }
    let signature = &function.sig;
    if signature.inputs.len() != 2 || !signature.generics.params.is_empty() || signature.asyncness.is_some() {
        return Err(Error::new_spanned(
            signature,
            "a job is `fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()>`",
        ));
    }
    let name = &signature.ident;
    let description = description(function);
    Ok(quote! {
        #function

        #[doc(hidden)]
        pub enum __EngineProgram {}

        impl ::engine_sdk::__private::Program for __EngineProgram {
            const DESCRIPTION: &'static str = #description;

            fn declare(
                env: &::engine_sdk::StreamExecutionEnvironment,
                args: &::engine_sdk::Args,
            ) -> ::engine_sdk::Result<()> {
                #name(env, args)
            }
        }

        #[cfg(target_arch = "wasm32")]
        type __EnginePlugin = ::engine_sdk::__private::Plugin<__EngineProgram>;

        #[cfg(target_arch = "wasm32")]
        ::engine_sdk::__private::export_plugin!(
            __EnginePlugin with_types_in ::engine_sdk::__private::bindings
        );
    })
}

/// The documentation of the function, one line for each of its lines.
fn description(function: &ItemFn) -> String {
    let lines = function.attrs.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(meta) if meta.path.is_ident("doc") => match &meta.value {
            Expr::Lit(ExprLit { lit: Lit::Str(line), .. }) => {
                let line = line.value();
                Some(line.strip_prefix(' ').unwrap_or(&line).to_owned())
            }
            _ => None,
        },
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}
