//! The macros of `engine-sdk`: `#[job]`, `#[derive(Record)]` and `#[derive(Key)]`.

mod job;
mod record;

use proc_macro::TokenStream;
use syn::{DeriveInput, ItemFn, parse_macro_input};

/// Makes a function the program of the plugin.
///
/// The function is `fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()>`; what
/// stands above it as documentation is what `engine inspect` shows.
#[proc_macro_attribute]
pub fn job(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function = parse_macro_input!(item as ItemFn);
    job::expand(attribute.into(), &function).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a struct or enum, with at most one lifetime, a type of records.
///
/// * `#[record(name = "date_time")]` on a field: its name in the type descriptor,
///   by which JSON and CSV are read.
/// * `#[record(other)]` on one variant without fields: it takes what has no variant of its
///   own when JSON is read. Of such a line nothing is read but the name: whether the rest is
///   JSON is not checked.
#[proc_macro_derive(Record, attributes(record))]
pub fn derive_record(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    record::expand(&item).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes a record a type of keys; all its fields must be keys too.
#[proc_macro_derive(Key)]
pub fn derive_key(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as DeriveInput);
    record::expand_key(&item).unwrap_or_else(syn::Error::into_compile_error).into()
}
