//! Whether a state that was stored with one type can be read with another, and how its
//! values are rewritten for that.
//!
//! A field may be added, if its type has a default (zero, false, empty, none); one may be
//! removed; fields may change places. Numbers may become wider of the same kind, or signed
//! and wider; a value may become an option of it; a sum may get variants. This holds at any
//! depth, but not for keys of maps. Everything else is another type.

use engine_rows::descriptor::{TypeDescriptor, Variant};

use crate::{
    graph::stream_graph::{StateDeclaration, StateKind},
    state::{RestoreError, rewrite_section},
};

/// Bytes of the time at which a value ends.
const ENDS_AT_BYTES: usize = 8;

/// What becomes of stored values.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Evolution {
    /// They are read as they are.
    Same,
    /// They are rewritten.
    Converted(StateConversion),
    /// They cannot be read; why.
    Incompatible(String),
}

/// How the values of a state are rewritten.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StateConversion {
    conversion: Conversion,
    is_keyed_list: bool,
    has_time_to_live: bool,
}

impl StateConversion {
    /// True if values get fields that were not stored: zero, false, empty or none.
    pub fn adds_fields(&self) -> bool {
        self.conversion.adds_fields()
    }
}

/// Compares a stored state with one that a program declares under its name.
pub fn evolution(old: &StateDeclaration, new: &StateDeclaration) -> Evolution {
    let refused = |reason: &str| Evolution::Incompatible(reason.to_owned());
    if old.kind != new.kind {
        return refused("a state cannot become one of another kind");
    }
    if old.map_key_type != new.map_key_type {
        return refused("the keys of a map cannot change");
    }
    if old.time_to_live.is_some() != new.time_to_live.is_some() {
        return refused("a time-to-live can be neither added nor removed");
    }
    if old.value_type == new.value_type {
        return Evolution::Same;
    }
    if old.kind == StateKind::Broadcast {
        return refused("broadcast state cannot change its type");
    }
    let (Ok(from), Ok(to)) = (TypeDescriptor::parse(&old.value_type), TypeDescriptor::parse(&new.value_type)) else {
        return refused("the types are not known");
    };
    match conversion(&from, &to) {
        Ok(conversion) => Evolution::Converted(StateConversion {
            conversion: conversion.of_whole(&from),
            is_keyed_list: old.kind == StateKind::List,
            has_time_to_live: old.time_to_live.is_some(),
        }),
        Err(reason) => Evolution::Incompatible(reason),
    }
}

/// For each stored state how it is rewritten for those that a program declares; none: not at all.
pub fn conversions(old: &[StateDeclaration], new: &[StateDeclaration]) -> Vec<Option<StateConversion>> {
    let of = |old: &StateDeclaration| match evolution(old, new.iter().find(|new| new.name == old.name)?) {
        Evolution::Converted(conversion) => Some(conversion),
        Evolution::Same | Evolution::Incompatible(_) => None,
    };
    old.iter().map(of).collect()
}

/// Rewrites the part of one key group for [`crate::state::KeyedState::restore`].
///
/// # Errors
/// Returns an error if the bytes are not well formed.
pub fn convert_section(content: &[u8], conversions: &[Option<StateConversion>]) -> Result<Vec<u8>, RestoreError> {
    rewrite_section(content, &mut |state, value| {
        let Some(conversion) = conversions.get(state).and_then(Option::as_ref) else { return Ok(None) };
        conversion.convert(value).map(Some)
    })
}

impl StateConversion {
    /// Rewrites a value, the elements of a keyed list, or the element of a list of an operator.
    ///
    /// # Errors
    /// Returns an error if the bytes do not have the old type.
    pub fn convert(&self, value: &[u8]) -> Result<Vec<u8>, String> {
        let mut out = Vec::with_capacity(value.len() + 16);
        if !self.is_keyed_list {
            self.convert_one(value, &mut out)?;
            return Ok(out);
        }
        let mut rest = value;
        while !rest.is_empty() {
            let element = take_bytes(&mut rest)?;
            let at = out.len();
            out.extend_from_slice(&[0; 4]);
            self.convert_one(element, &mut out)?;
            let length = length(out.len() - at - 4)?;
            out[at..at + 4].copy_from_slice(&length);
        }
        Ok(out)
    }

    fn convert_one(&self, mut value: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        if self.has_time_to_live {
            out.extend_from_slice(take(&mut value, ENDS_AT_BYTES)?);
        }
        self.conversion.apply(&mut value, out)?;
        if value.is_empty() { Ok(()) } else { Err(format!("{} bytes follow the value", value.len())) }
    }
}

/// How bytes of one type become those of another.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Conversion {
    /// They stay.
    Copy(TypeDescriptor),
    /// A number of so many bytes gets so many; signed or not.
    Integer {
        from: usize,
        to: usize,
        is_signed: bool,
    },
    /// f32 to f64.
    Float,
    /// Text or bytes without a length get one.
    Whole,
    /// An option of it.
    Some(Box<Conversion>),
    Option(Box<Conversion>),
    List(Box<Conversion>),
    Map(TypeDescriptor, Box<Conversion>),
    Tuple(Vec<Conversion>),
    Struct {
        /// For each old field how it is rewritten, or its type if it is left out.
        read: Vec<Result<Conversion, TypeDescriptor>>,
        /// For each new field the old one, or its default.
        write: Vec<Result<usize, Vec<u8>>>,
    },
    /// For each old variant its new number, and its fields.
    Sum(Vec<(u8, Vec<Conversion>)>),
}

impl Conversion {
    /// Fields that were not stored get a default.
    fn adds_fields(&self) -> bool {
        match self {
            Self::Copy(_) | Self::Integer { .. } | Self::Float | Self::Whole => false,
            Self::Some(value) | Self::Option(value) | Self::List(value) | Self::Map(_, value) => value.adds_fields(),
            Self::Tuple(fields) => fields.iter().any(Self::adds_fields),
            Self::Struct { read, write } => {
                write.iter().any(Result::is_err) || read.iter().flatten().any(Self::adds_fields)
            }
            Self::Sum(variants) => variants.iter().flat_map(|(_, fields)| fields).any(Self::adds_fields),
        }
    }
}

/// How to convert, or why that cannot be done.
fn conversion(from: &TypeDescriptor, to: &TypeDescriptor) -> Result<Conversion, String> {
    if from == to {
        return Ok(Conversion::Copy(from.clone()));
    }
    match (from, to) {
        (TypeDescriptor::F32, TypeDescriptor::F64) => Ok(Conversion::Float),
        (TypeDescriptor::Option(from), TypeDescriptor::Option(to)) => {
            Ok(Conversion::Option(Box::new(conversion(from, to)?)))
        }
        (from, TypeDescriptor::Option(to)) => Ok(Conversion::Some(Box::new(conversion(from, to)?))),
        (TypeDescriptor::List(from), TypeDescriptor::List(to)) => Ok(Conversion::List(Box::new(conversion(from, to)?))),
        (TypeDescriptor::Map(key, from), TypeDescriptor::Map(new_key, to)) if key == new_key => {
            Ok(Conversion::Map((**key).clone(), Box::new(conversion(from, to)?)))
        }
        (TypeDescriptor::Tuple(from), TypeDescriptor::Tuple(to)) if from.len() == to.len() => {
            Ok(Conversion::Tuple(each(from, to)?))
        }
        (TypeDescriptor::Struct { name, fields }, TypeDescriptor::Struct { name: new_name, fields: new_fields })
            if name == new_name =>
        {
            struct_conversion(fields, new_fields)
        }
        (TypeDescriptor::Sum { name, variants }, TypeDescriptor::Sum { name: new_name, variants: new_variants })
            if name == new_name =>
        {
            sum_conversion(name, variants, new_variants)
        }
        _ => match (integer(from), integer(to)) {
            (Some((from, false)), Some((to, _))) if from < to => Ok(Conversion::Integer { from, to, is_signed: false }),
            (Some((from, true)), Some((to, true))) if from < to => {
                Ok(Conversion::Integer { from, to, is_signed: true })
            }
            _ => Err(format!("{from} cannot be read as {to}")),
        },
    }
}

fn each(from: &[TypeDescriptor], to: &[TypeDescriptor]) -> Result<Vec<Conversion>, String> {
    from.iter().zip(to).map(|(from, to)| conversion(from, to)).collect()
}

fn struct_conversion(old: &[(String, TypeDescriptor)], new: &[(String, TypeDescriptor)]) -> Result<Conversion, String> {
    let read = old.iter().map(|(name, from)| match new.iter().find(|(new_name, _)| new_name == name) {
        Some((_, to)) => conversion(from, to).map(Ok).map_err(|reason| format!("field {name:?}: {reason}")),
        None => Ok(Err(from.clone())),
    });
    let write = new.iter().map(|(name, to)| match old.iter().position(|(old_name, _)| old_name == name) {
        Some(place) => Ok(Ok(place)),
        None => {
            let mut default = Vec::new();
            write_default(to, &mut default)
                .map_err(|kind| format!("the new field {name:?} is {kind}, which has no default"))?;
            Ok(Err(default))
        }
    });
    Ok(Conversion::Struct { read: read.collect::<Result<_, String>>()?, write: write.collect::<Result<_, String>>()? })
}

fn sum_conversion(name: &str, old: &[Variant], new: &[Variant]) -> Result<Conversion, String> {
    let variants = old.iter().map(|variant| {
        let found = new.iter().position(|new| new.name == variant.name && new.fields.len() == variant.fields.len());
        let place = found.ok_or_else(|| format!("variant {:?} of {name} is gone or has other fields", variant.name))?;
        let fields = each(&variant.fields, &new[place].fields)
            .map_err(|reason| format!("variant {:?} of {name}: {reason}", variant.name))?;
        Ok((u8::try_from(place).expect("a sum has at most 256 variants"), fields))
    });
    variants.collect::<Result<_, String>>().map(Conversion::Sum)
}

/// Bytes of an integer, and whether it has a sign.
fn integer(descriptor: &TypeDescriptor) -> Option<(usize, bool)> {
    Some(match descriptor {
        TypeDescriptor::U8 => (1, false),
        TypeDescriptor::U16 => (2, false),
        TypeDescriptor::U32 => (4, false),
        TypeDescriptor::U64 => (8, false),
        TypeDescriptor::I8 => (1, true),
        TypeDescriptor::I16 => (2, true),
        TypeDescriptor::I32 => (4, true),
        TypeDescriptor::I64 => (8, true),
        _ => return None,
    })
}

/// Writes the default of a type, or tells the kind of type that has none.
fn write_default(descriptor: &TypeDescriptor, out: &mut Vec<u8>) -> Result<(), &'static str> {
    match descriptor {
        TypeDescriptor::Sum { .. } => return Err("a sum"),
        TypeDescriptor::Tuple(elements) => {
            elements.iter().try_for_each(|element| write_default(element, out))?;
        }
        TypeDescriptor::Struct { fields, .. } => {
            fields.iter().try_for_each(|(_, field)| write_default(field, out))?;
        }
        TypeDescriptor::Option(_) => out.push(0),
        TypeDescriptor::String | TypeDescriptor::Bytes | TypeDescriptor::List(_) | TypeDescriptor::Map(..) => {
            out.extend_from_slice(&[0; 4]);
        }
        simple => out.resize(out.len() + simple_bytes(simple), 0),
    }
    Ok(())
}

/// Bytes of a type that always has as many.
fn simple_bytes(descriptor: &TypeDescriptor) -> usize {
    match descriptor {
        TypeDescriptor::Bool => 1,
        TypeDescriptor::Char | TypeDescriptor::F32 => 4,
        TypeDescriptor::F64 => 8,
        other => integer(other).map_or(0, |(bytes, _)| bytes),
    }
}

impl Conversion {
    /// Text and bytes have no length where they are all there is.
    fn of_whole(self, from: &TypeDescriptor) -> Self {
        match self {
            Self::Some(inner) if matches!(from, TypeDescriptor::String | TypeDescriptor::Bytes) => {
                let inner = if matches!(*inner, Self::Some(_)) { inner.of_whole(from) } else { Self::Whole };
                Self::Some(Box::new(inner))
            }
            other => other,
        }
    }

    fn apply(&self, from: &mut &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Copy(descriptor) => {
                let before = *from;
                skip(descriptor, from)?;
                out.extend_from_slice(&before[..before.len() - from.len()]);
            }
            Self::Integer { from: old, to, is_signed } => {
                let bytes = take(from, *old)?;
                out.extend_from_slice(bytes);
                let is_negative = *is_signed && bytes.last().is_some_and(|last| 0x80 <= *last);
                out.resize(out.len() + to - old, if is_negative { 0xff } else { 0 });
            }
            Self::Float => {
                let number = f32::from_bits(take_number(from)?);
                out.extend_from_slice(&f64::from(number).to_le_bytes());
            }
            Self::Whole => {
                out.extend_from_slice(&length(from.len())?);
                out.extend_from_slice(std::mem::take(from));
            }
            Self::Some(inner) => {
                out.push(1);
                inner.apply(from, out)?;
            }
            Self::Option(inner) => {
                let is_some = take_flag(from)?;
                out.push(u8::from(is_some));
                if is_some {
                    inner.apply(from, out)?;
                }
            }
            Self::List(element) => {
                let count = take_number(from)?;
                out.extend_from_slice(&count.to_le_bytes());
                (0..count).try_for_each(|_| element.apply(from, out))?;
            }
            Self::Map(key, value) => {
                let count = take_number(from)?;
                out.extend_from_slice(&count.to_le_bytes());
                for _ in 0..count {
                    let before = *from;
                    skip(key, from)?;
                    out.extend_from_slice(&before[..before.len() - from.len()]);
                    value.apply(from, out)?;
                }
            }
            Self::Tuple(elements) => elements.iter().try_for_each(|element| element.apply(from, out))?,
            Self::Struct { read, write } => {
                let mut fields = Vec::with_capacity(read.len());
                for field in read {
                    let mut bytes = Vec::new();
                    match field {
                        Ok(conversion) => conversion.apply(from, &mut bytes)?,
                        Err(removed) => skip(removed, from)?,
                    }
                    fields.push(bytes);
                }
                for field in write {
                    out.extend_from_slice(match field {
                        Ok(place) => &fields[*place],
                        Err(default) => default,
                    });
                }
            }
            Self::Sum(variants) => {
                let [number] = take(from, 1)? else { return Err(cut()) };
                let (place, fields) =
                    variants.get(usize::from(*number)).ok_or_else(|| format!("there is no variant {number}"))?;
                out.push(*place);
                fields.iter().try_for_each(|field| field.apply(from, out))?;
            }
        }
        Ok(())
    }
}

fn cut() -> String {
    "it is shorter than its type says".to_owned()
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Result<&'a [u8], String> {
    let (taken, rest) = from.split_at_checked(count).ok_or_else(cut)?;
    *from = rest;
    Ok(taken)
}

fn take_number(from: &mut &[u8]) -> Result<u32, String> {
    let (number, rest) = from.split_first_chunk().ok_or_else(cut)?;
    *from = rest;
    Ok(u32::from_le_bytes(*number))
}

fn take_bytes<'a>(from: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let length = take_number(from)?;
    take(from, length as usize)
}

fn take_flag(from: &mut &[u8]) -> Result<bool, String> {
    match take(from, 1)? {
        [0] => Ok(false),
        [1] => Ok(true),
        _ => Err("a number stands for neither none nor some".to_owned()),
    }
}

fn length(bytes: usize) -> Result<[u8; 4], String> {
    u32::try_from(bytes).map(u32::to_le_bytes).map_err(|_| "it is longer than 4 GiB".to_owned())
}

/// Passes over a value that stands within another.
fn skip(descriptor: &TypeDescriptor, from: &mut &[u8]) -> Result<(), String> {
    match descriptor {
        TypeDescriptor::String | TypeDescriptor::Bytes => take_bytes(from).map(drop),
        TypeDescriptor::Option(inner) => {
            if take_flag(from)? {
                skip(inner, from)
            } else {
                Ok(())
            }
        }
        TypeDescriptor::List(element) => {
            let count = take_number(from)?;
            skip_many(count, &[element], from)
        }
        TypeDescriptor::Map(key, value) => {
            let count = take_number(from)?;
            skip_many(count, &[key, value], from)
        }
        TypeDescriptor::Tuple(elements) => elements.iter().try_for_each(|element| skip(element, from)),
        TypeDescriptor::Struct { fields, .. } => fields.iter().try_for_each(|(_, field)| skip(field, from)),
        TypeDescriptor::Sum { variants, .. } => {
            let [number] = take(from, 1)? else { return Err(cut()) };
            let variant = variants.get(usize::from(*number)).ok_or_else(|| format!("there is no variant {number}"))?;
            variant.fields.iter().try_for_each(|field| skip(field, from))
        }
        simple => take(from, simple_bytes(simple)).map(drop),
    }
}

/// Passes over so many elements of these types. Elements without bytes need no time.
fn skip_many(count: u32, descriptors: &[&TypeDescriptor], from: &mut &[u8]) -> Result<(), String> {
    for _ in 0..count {
        let before = from.len();
        descriptors.iter().try_for_each(|descriptor| skip(descriptor, from))?;
        if from.len() == before {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
