//! `#[derive(Record)]` and `#[derive(Key)]`.

use std::ops::Range;

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote};
use syn::{
    Data, DataEnum, DeriveInput, Error, Field, Fields, GenericParam, Lifetime, LitStr, Member, Result, Type, Variant,
    ext::IdentExt,
};

/// More variants a sum cannot have: the number of a variant is one byte.
const VARIANTS_MAX: usize = 256;

pub(crate) fn expand(item: &DeriveInput) -> Result<TokenStream> {
    let name = &item.ident;
    let borrowed = lifetime(item)?;
    let Body { descriptor, read, write } = match &item.data {
        Data::Struct(data) => struct_body(name, &data.fields)?,
        Data::Enum(data) => enum_body(name, data)?,
        Data::Union(_) => return Err(Error::new_spanned(name, "a union cannot be a record")),
    };
    let value_lifetime = borrowed.clone().unwrap_or_else(|| Lifetime::new("'__row", name.span()));
    let arguments = borrowed.as_ref().map(|lifetime| quote!(<#lifetime>));
    let record = record_impl(name, borrowed.is_some());
    Ok(quote! {
        #[automatically_derived]
        impl<#value_lifetime> ::engine_sdk::__private::Value<#value_lifetime> for #name #arguments {
            fn descriptor(
                __nesting: ::engine_sdk::__private::Nesting,
            ) -> ::engine_sdk::__private::TypeDescriptor {
                #descriptor
            }

            #[inline]
            fn read(
                __reader: &mut ::engine_sdk::__private::Reader<#value_lifetime>,
            ) -> ::core::result::Result<Self, ::engine_sdk::__private::DecodeError> {
                #read
            }

            #[inline]
            fn write(&self, __out: &mut ::std::vec::Vec<u8>) {
                #write
            }
        }

        #record
    })
}

pub(crate) fn expand_key(item: &DeriveInput) -> Result<TokenStream> {
    let name = &item.ident;
    let borrowed = lifetime(item)?;
    let types: Vec<&Type> = match &item.data {
        Data::Struct(data) => data.fields.iter().map(|field| &field.ty).collect(),
        Data::Enum(data) => data.variants.iter().flat_map(|variant| &variant.fields).map(|field| &field.ty).collect(),
        Data::Union(_) => return Err(Error::new_spanned(name, "a union cannot be a key")),
    };
    let parameters = borrowed.as_ref().map(|lifetime| quote!(<#lifetime>));
    let family = borrowed.as_ref().map(|_| quote!(<'static>));
    Ok(quote! {
        #[automatically_derived]
        impl #parameters ::engine_sdk::__private::KeyValue for #name #parameters {}

        #[automatically_derived]
        impl ::engine_sdk::Key for #name #family {}

        const _: () = {
            fn __is_key_value<V: ::engine_sdk::__private::KeyValue>() {}

            #[allow(dead_code, reason = "checks the types of the fields")]
            fn __fields #parameters () {
                #(__is_key_value::<#types>();)*
            }
        };
    })
}

/// Parts of the impl of `Value`.
struct Body {
    descriptor: TokenStream,
    read: TokenStream,
    write: TokenStream,
}

/// The lifetime that the type borrows for, if it has one.
fn lifetime(item: &DeriveInput) -> Result<Option<Lifetime>> {
    let mut lifetime = None;
    for parameter in &item.generics.params {
        match parameter {
            GenericParam::Lifetime(parameter) if lifetime.is_none() && parameter.bounds.is_empty() => {
                lifetime = Some(parameter.lifetime.clone());
            }
            _ => {
                return Err(Error::new_spanned(
                    parameter,
                    "a record may have one lifetime and no type parameters: its type descriptor must be known",
                ));
            }
        }
    }
    Ok(lifetime)
}

fn struct_body(name: &Ident, fields: &Fields) -> Result<Body> {
    let type_name = name.unraw().to_string();
    let types: Vec<_> = fields.iter().map(|field| &field.ty).collect();
    let names = fields.iter().enumerate().map(|(index, field)| field_name(field, index)).collect::<Result<Vec<_>>>()?;
    for (index, field_name) in names.iter().enumerate() {
        if names[..index].contains(field_name) {
            let field = fields.iter().nth(index);
            return Err(Error::new_spanned(field, format!("there are two fields named \"{field_name}\"")));
        }
    }
    let members: Vec<_> = fields.members().collect();
    let runs = runs(&types);
    let locals: Vec<_> = (0..types.len()).map(|index| format_ident!("__field{index}")).collect();
    let reads = runs.iter().map(|run| run.read(&types, &locals));
    let writes = runs.iter().map(|run| run.write(&types, &members));
    Ok(Body {
        descriptor: quote! {
            ::engine_sdk::__private::TypeDescriptor::Struct {
                name: ::std::string::String::from(#type_name),
                fields: ::std::vec![#((
                    ::std::string::String::from(#names),
                    <#types as ::engine_sdk::__private::Value<'_>>::descriptor(__nesting.inner()),
                )),*],
            }
        },
        read: quote! {
            #(#reads)*
            ::core::result::Result::Ok(Self { #(#members: #locals,)* })
        },
        write: quote!(#(#writes)*),
    })
}

/// Fields that follow one another: numbers, which are read and written at once with
/// one check of the length, or a single field of another type.
enum Run {
    /// Indexes of the fields.
    Numbers(Range<usize>),
    /// Index of the field.
    Other(usize),
}

/// Cuts the fields into runs.
fn runs(types: &[&Type]) -> Vec<Run> {
    let mut runs = Vec::new();
    for (index, field) in types.iter().enumerate() {
        match (width(field), runs.last_mut()) {
            (Some(_), Some(Run::Numbers(run))) => run.end = index + 1,
            (Some(_), _) => runs.push(Run::Numbers(index..index + 1)),
            (None, _) => runs.push(Run::Other(index)),
        }
    }
    runs
}

/// Bytes of a number's encoding; none if the type is not one by its name.
fn width(field: &Type) -> Option<usize> {
    let Type::Path(path) = field else {
        return None;
    };
    match path.path.get_ident()?.to_string().as_str() {
        "u8" | "i8" => Some(1),
        "u16" | "i16" => Some(2),
        "u32" | "i32" | "f32" => Some(4),
        "u64" | "i64" | "f64" => Some(8),
        _ => None,
    }
}

impl Run {
    fn read(&self, types: &[&Type], locals: &[Ident]) -> TokenStream {
        match self {
            Self::Other(index) => {
                let (field, local) = (types[*index], &locals[*index]);
                quote!(let #local = <#field as ::engine_sdk::__private::Value<'_>>::read(__reader)?;)
            }
            Self::Numbers(run) => {
                let (bytes, ranges) = layout(&types[run.clone()]);
                let (types, locals) = (&types[run.clone()], &locals[run.clone()]);
                let values = ranges.into_iter().map(|places| quote!([#(__run[#places]),*]));
                quote! {
                    let __run = __reader.array::<#bytes>()?;
                    #(let #locals = ::core::primitive::#types::from_le_bytes(#values);)*
                }
            }
        }
    }

    fn write(&self, types: &[&Type], members: &[Member]) -> TokenStream {
        match self {
            Self::Other(index) => {
                let member = &members[*index];
                quote!(::engine_sdk::__private::Value::write(&self.#member, __out);)
            }
            Self::Numbers(run) => {
                let (bytes, ranges) = layout(&types[run.clone()]);
                let (types, members) = (&types[run.clone()], &members[run.clone()]);
                let (starts, ends): (Vec<_>, Vec<_>) = ranges.into_iter().map(|range| (range.start, range.end)).unzip();
                quote! {
                    let mut __run = [0_u8; #bytes];
                    #(__run[#starts..#ends].copy_from_slice(&::core::primitive::#types::to_le_bytes(self.#members));)*
                    __out.extend_from_slice(&__run);
                }
            }
        }
    }
}

/// Bytes of all numbers, and the range of each.
fn layout(types: &[&Type]) -> (usize, Vec<Range<usize>>) {
    let mut end = 0;
    let ranges = types.iter().map(|field| {
        let start = end;
        end += width(field).expect("runs are made of numbers");
        start..end
    });
    let ranges = ranges.collect();
    (end, ranges)
}

/// The name of a field in the descriptor.
fn field_name(field: &Field, index: usize) -> Result<String> {
    let mut name = field.ident.as_ref().map_or_else(|| index.to_string(), |ident| ident.unraw().to_string());
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("record")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("name") {
                return Err(meta.error("unknown attribute of a field: there is `name = \"...\"`"));
            }
            let value: LitStr = meta.value()?.parse()?;
            name = value.value();
            if name.is_empty() || name.contains([':', ',', '{', '}']) {
                return Err(Error::new(value.span(), "a field's name is not empty and has no `:`, `,`, `{` or `}`"));
            }
            Ok(())
        })?;
    }
    Ok(name)
}

fn enum_body(name: &Ident, data: &DataEnum) -> Result<Body> {
    let type_name = name.unraw().to_string();
    if data.variants.is_empty() {
        return Err(Error::new_spanned(name, "a record needs at least one variant"));
    }
    if VARIANTS_MAX < data.variants.len() {
        return Err(Error::new_spanned(name, format!("a record has at most {VARIANTS_MAX} variants")));
    }
    let mut descriptors = Vec::new();
    let mut reads = Vec::new();
    let mut writes = Vec::new();
    let mut others = 0;
    for (number, variant) in data.variants.iter().enumerate() {
        if let Fields::Named(fields) = &variant.fields {
            let hint = format!("give the fields of `{0}` a struct of their own: `{0}({0})`", variant.ident);
            return Err(Error::new_spanned(fields, hint));
        }
        let is_other = is_other(variant)?;
        others += usize::from(is_other);
        if 1 < others {
            return Err(Error::new_spanned(variant, "only one variant can be `#[record(other)]`"));
        }
        let ident = &variant.ident;
        let variant_name = ident.unraw().to_string();
        let types: Vec<_> = variant.fields.iter().map(|field| &field.ty).collect();
        let bindings: Vec<_> = (0..types.len()).map(|index| format_ident!("__field{index}")).collect();
        let pattern = if types.is_empty() { quote!() } else { quote!((#(#bindings),*)) };
        let number = u8::try_from(number).expect("the number of variants was checked");
        descriptors.push(quote! {
            ::engine_sdk::__private::Variant {
                name: ::std::string::String::from(#variant_name),
                other: #is_other,
                fields: ::std::vec![#(
                    <#types as ::engine_sdk::__private::Value<'_>>::descriptor(__nesting.inner())
                ),*],
            }
        });
        let values = quote!(#(<#types as ::engine_sdk::__private::Value<'_>>::read(__reader)?),*);
        let construct = if types.is_empty() { quote!(Self::#ident) } else { quote!(Self::#ident(#values)) };
        reads.push(quote!(#number => #construct,));
        writes.push(quote! {
            Self::#ident #pattern => {
                ::engine_sdk::__private::Value::write(&#number, __out);
                #(::engine_sdk::__private::Value::write(#bindings, __out);)*
            }
        });
    }
    Ok(Body {
        descriptor: quote! {
            ::engine_sdk::__private::TypeDescriptor::Sum {
                name: ::std::string::String::from(#type_name),
                variants: ::std::vec![#(#descriptors),*],
            }
        },
        read: quote! {
            ::core::result::Result::Ok(match <u8 as ::engine_sdk::__private::Value<'_>>::read(__reader)? {
                #(#reads)*
                _ => return ::core::result::Result::Err(::engine_sdk::__private::DecodeError::NoSuchValue),
            })
        },
        write: quote! {
            match self { #(#writes)* }
        },
    })
}

/// True if the variant takes what has no variant of its own.
fn is_other(variant: &Variant) -> Result<bool> {
    let mut is_other = false;
    for attribute in variant.attrs.iter().filter(|attribute| attribute.path().is_ident("record")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("other") {
                return Err(meta.error("unknown attribute of a variant: there is `other`"));
            }
            is_other = true;
            Ok(())
        })?;
    }
    if is_other && !variant.fields.is_empty() {
        return Err(Error::new_spanned(&variant.fields, "the variant that takes all others has no fields"));
    }
    Ok(is_other)
}

fn record_impl(name: &Ident, is_borrowed: bool) -> TokenStream {
    let (family, view, reference) = if is_borrowed {
        (quote!(#name<'static>), quote!(#name<'a>), quote!(&'a #name<'a>))
    } else {
        (quote!(#name), quote!(#name), quote!(&'a #name))
    };
    quote! {
        #[automatically_derived]
        impl ::engine_sdk::Record for #family {
            type View<'a> = #view;
            type Ref<'a> = #reference;

            #[inline]
            fn peek<'s, 'a: 's>(view: &'s Self::View<'a>) -> Self::Ref<'s> {
                view
            }

            #[inline]
            fn shorten<'s, 'a: 's>(record: Self::Ref<'a>) -> Self::Ref<'s> {
                record
            }

            fn descriptor(
                nesting: ::engine_sdk::__private::Nesting,
            ) -> ::engine_sdk::__private::TypeDescriptor {
                <Self as ::engine_sdk::__private::Value<'_>>::descriptor(nesting)
            }

            #[inline(always)]
            fn decode<__R>(
                payload: &[u8],
                f: impl ::core::ops::FnOnce(Self::View<'_>) -> __R,
            ) -> ::core::result::Result<__R, ::engine_sdk::__private::DecodeError> {
                ::core::result::Result::Ok(f(::engine_sdk::__private::decode_value(payload)?))
            }

            #[inline(always)]
            fn encode(record: Self::Ref<'_>, payload: &mut ::std::vec::Vec<u8>) {
                ::engine_sdk::__private::Value::write(record, payload);
            }

            #[inline]
            fn decode_within<'b, __R>(
                reader: &mut ::engine_sdk::__private::Reader<'b>,
                f: impl ::core::ops::FnOnce(
                    Self::View<'_>,
                    &mut ::engine_sdk::__private::Reader<'b>,
                ) -> __R,
            ) -> ::core::result::Result<__R, ::engine_sdk::__private::DecodeError> {
                let value = ::engine_sdk::__private::Value::read(reader)?;
                ::core::result::Result::Ok(f(value, reader))
            }

            #[inline]
            fn encode_within(record: Self::Ref<'_>, out: &mut ::std::vec::Vec<u8>) {
                ::engine_sdk::__private::Value::write(record, out);
            }
        }
    }
}
