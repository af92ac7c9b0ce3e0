//! Type descriptors: the structure of records, keys and states as text.
//!
//! ```text
//! type    = "bool" | "char" | "u8" … "u64" | "i8" … "i64" | "f32" | "f64"
//!         | "string" | "bytes"
//!         | "option<" type ">" | "list<" type ">" | "map<" type "," type ">"
//!         | "tuple(" [ type { "," type } ] ")"
//!         | name "{" [ field ":" type { "," field ":" type } ] "}"
//!         | name "[" variant { "|" variant } "]"
//! variant = [ "*" ] name [ "(" type { "," type } ")" ]
//! ```
//!
//! A sum's variant marked `*` takes what has no variant of its own when text is
//! decoded. Names are Rust identifiers, field names any text without `:,{}`.
//! There is no white space. Two descriptors are the same type if they are the
//! same text.

use std::fmt;

/// Deepest nesting of types.
pub const DEPTH_MAX: usize = 32;

/// The structure of a type.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TypeDescriptor {
    /// One byte, 0 or 1.
    Bool,
    /// u32, a Unicode scalar value.
    Char,
    /// One byte.
    U8,
    /// Two bytes, little-endian, as all that follow.
    U16,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
    /// One byte.
    I8,
    /// Two bytes.
    I16,
    /// Four bytes.
    I32,
    /// Eight bytes.
    I64,
    /// Four bytes, IEEE 754.
    F32,
    /// Eight bytes, IEEE 754.
    F64,
    /// u32 length and UTF-8; as a whole record: UTF-8 without length.
    String,
    /// u32 length and bytes; as a whole record: bytes without length.
    Bytes,
    /// One byte 0 or 1, then the value if 1.
    Option(Box<TypeDescriptor>),
    /// u32 count, then the elements.
    List(Box<TypeDescriptor>),
    /// u32 count, then keys and values in turn.
    Map(Box<TypeDescriptor>, Box<TypeDescriptor>),
    /// The elements.
    Tuple(Vec<TypeDescriptor>),
    /// The fields, in their order.
    Struct {
        /// Name of the type.
        name: String,
        /// Names and types.
        fields: Vec<(String, TypeDescriptor)>,
    },
    /// One byte, the zero-based variant, then its fields.
    Sum {
        /// Name of the type.
        name: String,
        /// At most 256.
        variants: Vec<Variant>,
    },
}

/// A variant of a sum.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Variant {
    /// Name of the variant.
    pub name: String,
    /// True if it takes what has no variant of its own; then it has no fields.
    pub other: bool,
    /// Types of its fields.
    pub fields: Vec<TypeDescriptor>,
}

/// Text is not a type descriptor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ParseDescriptorError {
    /// Byte at which it stops to be one.
    pub offset: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for ParseDescriptorError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "not a type descriptor: expected {} at byte {}", self.expected, self.offset)
    }
}

impl std::error::Error for ParseDescriptorError {}

const SIMPLE: [(&str, TypeDescriptor); 14] = [
    ("bool", TypeDescriptor::Bool),
    ("char", TypeDescriptor::Char),
    ("u8", TypeDescriptor::U8),
    ("u16", TypeDescriptor::U16),
    ("u32", TypeDescriptor::U32),
    ("u64", TypeDescriptor::U64),
    ("i8", TypeDescriptor::I8),
    ("i16", TypeDescriptor::I16),
    ("i32", TypeDescriptor::I32),
    ("i64", TypeDescriptor::I64),
    ("f32", TypeDescriptor::F32),
    ("f64", TypeDescriptor::F64),
    ("string", TypeDescriptor::String),
    ("bytes", TypeDescriptor::Bytes),
];

impl TypeDescriptor {
    /// Reads a descriptor.
    ///
    /// # Errors
    /// Returns an error if the text is not one, or is nested deeper than [`DEPTH_MAX`].
    pub fn parse(text: &str) -> Result<Self, ParseDescriptorError> {
        let mut parser = Parser { text, offset: 0 };
        let parsed = parser.descriptor(DEPTH_MAX)?;
        if parser.offset < text.len() {
            return Err(parser.error("the end"));
        }
        Ok(parsed)
    }
}

impl fmt::Display for TypeDescriptor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(element) => write!(formatter, "option<{element}>"),
            Self::List(element) => write!(formatter, "list<{element}>"),
            Self::Map(key, value) => write!(formatter, "map<{key},{value}>"),
            Self::Tuple(elements) => {
                formatter.write_str("tuple(")?;
                separated(formatter, ",", elements, |formatter, element| write!(formatter, "{element}"))?;
                formatter.write_str(")")
            }
            Self::Struct { name, fields } => {
                write!(formatter, "{name}{{")?;
                separated(formatter, ",", fields, |formatter, (field, kind)| write!(formatter, "{field}:{kind}"))?;
                formatter.write_str("}")
            }
            Self::Sum { name, variants } => {
                write!(formatter, "{name}[")?;
                separated(formatter, "|", variants, |formatter, variant| write!(formatter, "{variant}"))?;
                formatter.write_str("]")
            }
            simple => {
                let name = SIMPLE.iter().find(|(_, kind)| kind == simple).map_or("", |(name, _)| name);
                formatter.write_str(name)
            }
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", if self.other { "*" } else { "" }, self.name)?;
        if self.fields.is_empty() {
            return Ok(());
        }
        formatter.write_str("(")?;
        separated(formatter, ",", &self.fields, |formatter, field| write!(formatter, "{field}"))?;
        formatter.write_str(")")
    }
}

fn separated<T>(
    formatter: &mut fmt::Formatter<'_>,
    separator: &str,
    items: &[T],
    mut write: impl FnMut(&mut fmt::Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            formatter.write_str(separator)?;
        }
        write(formatter, item)?;
    }
    Ok(())
}

struct Parser<'a> {
    text: &'a str,
    offset: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, expected: &'static str) -> ParseDescriptorError {
        ParseDescriptorError { offset: self.offset, expected }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.offset..]
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.offset += token.len();
        }
        found
    }

    fn expect(&mut self, token: &'static str) -> Result<(), ParseDescriptorError> {
        if self.take(token) { Ok(()) } else { Err(self.error(token)) }
    }

    fn name(&mut self, is_end: impl Fn(char) -> bool) -> Result<&'a str, ParseDescriptorError> {
        let rest = self.rest();
        let length = rest.find(is_end).unwrap_or(rest.len());
        if length == 0 {
            return Err(self.error("a name"));
        }
        self.offset += length;
        Ok(&rest[..length])
    }

    fn identifier(&mut self) -> Result<&'a str, ParseDescriptorError> {
        self.name(|c| !(c.is_alphanumeric() || c == '_'))
    }

    fn descriptor(&mut self, depth: usize) -> Result<TypeDescriptor, ParseDescriptorError> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.error("fewer nested types"));
        };
        let start = self.offset;
        let name = self.identifier()?;
        if self.take("{") {
            return self.fields(depth).map(|fields| TypeDescriptor::Struct { name: name.to_owned(), fields });
        }
        if self.take("[") {
            return self.variants(depth).map(|variants| TypeDescriptor::Sum { name: name.to_owned(), variants });
        }
        match name {
            "option" => self.element(depth).map(|element| TypeDescriptor::Option(Box::new(element))),
            "list" => self.element(depth).map(|element| TypeDescriptor::List(Box::new(element))),
            "map" => {
                self.expect("<")?;
                let key = self.descriptor(depth)?;
                self.expect(",")?;
                let value = self.descriptor(depth)?;
                self.expect(">")?;
                Ok(TypeDescriptor::Map(Box::new(key), Box::new(value)))
            }
            "tuple" => {
                self.expect("(")?;
                self.elements(depth).map(TypeDescriptor::Tuple)
            }
            simple => match SIMPLE.iter().find(|(known, _)| *known == simple) {
                Some((_, kind)) => Ok(kind.clone()),
                None => {
                    self.offset = start;
                    Err(self.error("a type"))
                }
            },
        }
    }

    fn element(&mut self, depth: usize) -> Result<TypeDescriptor, ParseDescriptorError> {
        self.expect("<")?;
        let element = self.descriptor(depth)?;
        self.expect(">")?;
        Ok(element)
    }

    /// The elements up to and with ")"; "(" was taken.
    fn elements(&mut self, depth: usize) -> Result<Vec<TypeDescriptor>, ParseDescriptorError> {
        let mut elements = Vec::new();
        while !self.take(")") {
            if !elements.is_empty() {
                self.expect(",")?;
            }
            elements.push(self.descriptor(depth)?);
        }
        Ok(elements)
    }

    fn fields(&mut self, depth: usize) -> Result<Vec<(String, TypeDescriptor)>, ParseDescriptorError> {
        let mut fields = Vec::new();
        while !self.take("}") {
            if !fields.is_empty() {
                self.expect(",")?;
            }
            let name = self.name(|c| ":,{}".contains(c))?.to_owned();
            self.expect(":")?;
            fields.push((name, self.descriptor(depth)?));
        }
        Ok(fields)
    }

    fn variants(&mut self, depth: usize) -> Result<Vec<Variant>, ParseDescriptorError> {
        let mut variants = Vec::new();
        loop {
            let other = self.take("*");
            let name = self.identifier()?.to_owned();
            let fields = if self.take("(") { self.elements(depth)? } else { Vec::new() };
            if variants.len() == 256 {
                return Err(self.error("at most 256 variants"));
            }
            variants.push(Variant { name, other, fields });
            if self.take("]") {
                return Ok(variants);
            }
            self.expect("|")?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_print_as_they_were_parsed() {
        for text in [
            "bool",
            "Bid{auction:u64,channel:string,extra:option<bytes>}",
            "Event[Bid(Bid{price:u64})|*Other]",
            "tuple()",
            "tuple(u64,map<string,list<f64>>)",
            "Empty{}",
        ] {
            assert_eq!(TypeDescriptor::parse(text).map(|parsed| parsed.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_is_no_descriptor_is_refused_with_its_place() {
        for (text, offset, expected) in [
            ("", 0, "a name"),
            ("word", 0, "a type"),
            ("list<u8", 7, ">"),
            ("u8 ", 2, "the end"),
            ("Bid{auction}", 11, ":"),
            ("Event[]", 6, "a name"),
        ] {
            assert_eq!(TypeDescriptor::parse(text), Err(ParseDescriptorError { offset, expected }), "{text}");
        }
        let deep = "list<".repeat(40);
        assert!(TypeDescriptor::parse(&deep).is_err());
    }
}
