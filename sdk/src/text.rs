//! Records as text: `Display` or comma-separated values.

use std::{fmt::Display, io::Write as _};

use crate::record::{Record, write_bytes};

/// Formats records of type `T` as text, one line each, for a text sink.
#[diagnostic::on_unimplemented(
    message = "records of type `{T}` cannot be written as text this way",
    label = "not text",
    note = "text sinks take records that implement `Display`, CSV sinks take tuples and pairs of numbers and text; print pairs and tuples by `sink_to(PrintSink::csv())`, or `map` the stream to text first"
)]
pub trait Format<T: Record + ?Sized>: 'static {
    /// True if a record of type string is its own text.
    const PLAIN: bool;

    /// Appends the record's text.
    fn append(record: T::Ref<'_>, text: &mut Vec<u8>);
}

/// By the record's `Display`.
#[derive(Clone, Copy, Debug)]
pub struct Text;

#[diagnostic::do_not_recommend]
impl<T: Record + ?Sized> Format<T> for Text
where
    for<'a> T::Ref<'a>: Display,
{
    const PLAIN: bool = true;

    #[inline]
    fn append(record: T::Ref<'_>, text: &mut Vec<u8>) {
        write!(text, "{record}").expect("a Display impl of the record returned an error");
    }
}

/// As comma-separated values.
#[derive(Clone, Copy, Debug)]
pub struct Csv;

#[diagnostic::do_not_recommend]
impl<T: Record + ?Sized> Format<T> for Csv
where
    for<'a> T::Ref<'a>: CsvRow,
{
    const PLAIN: bool = false;

    #[inline]
    fn append(record: T::Ref<'_>, text: &mut Vec<u8>) {
        record.append_row(text);
    }
}

/// A row of comma-separated values: a tuple of numbers and text.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no row of comma-separated values",
    label = "not a tuple of numbers and text"
)]
pub trait CsvRow {
    /// Appends the row without a line end.
    fn append_row(&self, text: &mut Vec<u8>);
}

/// One value of a CSV row.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no value of a CSV row",
    label = "neither a number, text, bool, nor an option of one"
)]
pub trait CsvField {
    /// Appends the value, quoted if need be.
    fn append_field(&self, text: &mut Vec<u8>);
}

impl<R: CsvRow + ?Sized> CsvRow for &R {
    #[inline]
    fn append_row(&self, text: &mut Vec<u8>) {
        (**self).append_row(text);
    }
}

impl<F: CsvField + ?Sized> CsvField for &F {
    #[inline]
    fn append_field(&self, text: &mut Vec<u8>) {
        (**self).append_field(text);
    }
}

macro_rules! csv_integers {
    ($($type:ty),*) => { $(
        impl CsvField for $type {
            #[inline]
            #[allow(unused_comparisons, reason = "some of the types have no sign")]
            fn append_field(&self, text: &mut Vec<u8>) {
                if *self < 0 {
                    text.push(b'-');
                }
                append_decimal(i128::from(*self).unsigned_abs() as u64, text);
            }
        }
    )* };
}

csv_integers!(u8, u16, u32, u64, i8, i16, i32, i64);

/// Appends the decimal digits of a number.
#[inline]
fn append_decimal(number: u64, text: &mut Vec<u8>) {
    if TEN_TO_THE_EIGHTH <= number {
        append_decimal_long(number, text);
        return;
    }
    let digits = eight_digits(number);
    // Without branches: lengths of numbers vary. The last digit stays even if it is zero.
    let zeros = (digits | 1 << 56).trailing_zeros() & !7;
    let end = text.len() + 8 - zeros as usize / 8;
    text.extend_from_slice(&((digits >> zeros) + ASCII_ZEROS).to_le_bytes());
    text.truncate(end);
}

#[inline(never)]
fn append_decimal_long(number: u64, text: &mut Vec<u8>) {
    append_decimal(number / TEN_TO_THE_EIGHTH, text);
    text.extend_from_slice(&(eight_digits(number % TEN_TO_THE_EIGHTH) + ASCII_ZEROS).to_le_bytes());
}

const TEN_TO_THE_EIGHTH: u64 = 100_000_000;
const ASCII_ZEROS: u64 = 0x3030_3030_3030_3030;

/// The digits of a number of at most eight, zeros in front, one byte each, the first one lowest.
#[inline]
fn eight_digits(number: u64) -> u64 {
    // Two lanes of four digits, then four of two, then eight of one; each division by 100
    // or 10 is a multiplication that is exact for such short numbers.
    let fours = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = ((fours * 5243) >> 19) & 0x0000_007f_0000_007f;
    let twos = hundreds | ((fours - 100 * hundreds) << 16);
    let tens = ((twos * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | ((twos - 10 * tens) << 8)
}

macro_rules! csv_displayed {
    ($($type:ty),*) => { $(
        impl CsvField for $type {
            fn append_field(&self, text: &mut Vec<u8>) {
                write!(text, "{self}").expect("a vector takes all bytes");
            }
        }
    )* };
}

csv_displayed!(f32, f64, bool);

impl CsvField for str {
    #[inline]
    fn append_field(&self, text: &mut Vec<u8>) {
        if self.bytes().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r')) {
            append_quoted(self, text);
        } else {
            write_bytes(self.as_bytes(), text);
        }
    }
}

impl CsvField for String {
    #[inline]
    fn append_field(&self, text: &mut Vec<u8>) {
        self.as_str().append_field(text);
    }
}

impl CsvField for char {
    fn append_field(&self, text: &mut Vec<u8>) {
        self.encode_utf8(&mut [0; 4]).append_field(text);
    }
}

/// Nothing stands between the commas of a value that is absent.
impl<F: CsvField> CsvField for Option<F> {
    #[inline]
    fn append_field(&self, text: &mut Vec<u8>) {
        if let Some(field) = self {
            field.append_field(text);
        }
    }
}

#[cold]
fn append_quoted(field: &str, text: &mut Vec<u8>) {
    text.push(b'"');
    for byte in field.bytes() {
        if byte == b'"' {
            text.push(b'"');
        }
        text.push(byte);
    }
    text.push(b'"');
}

macro_rules! csv_tuples {
    ($([$first:ident 0 $(, $name:ident $index:tt)*])*) => { $(
        impl<$first: CsvField, $($name: CsvField),*> CsvRow for ($first, $($name,)*) {
            #[inline]
            fn append_row(&self, text: &mut Vec<u8>) {
                self.0.append_field(text);
                $(
                    text.push(b',');
                    self.$index.append_field(text);
                )*
            }
        }
    )* };
}

csv_tuples!(
    [A 0]
    [A 0, B 1]
    [A 0, B 1, C 2]
    [A 0, B 1, C 2, D 3]
    [A 0, B 1, C 2, D 3, E 4]
    [A 0, B 1, C 2, D 3, E 4, F 5]
    [A 0, B 1, C 2, D 3, E 4, F 5, G 6]
    [A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7]
    [A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8]
    [A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7, I 8, J 9]
);

#[cfg(test)]
mod tests {
    use super::{CsvField, CsvRow};

    #[test]
    fn values_are_quoted_only_where_they_must_be() {
        let mut text = Vec::new();
        (1_u64, -5_i32, "plain", "a,b", "say \"hi\"", "", None::<u8>, true).append_row(&mut text);
        assert_eq!(String::from_utf8(text).as_deref(), Ok(r#"1,-5,plain,"a,b","say ""hi""",,,true"#));
    }

    #[test]
    fn numbers_are_written_as_display_does() {
        fn check(number: impl CsvField + ToString + Copy) {
            let mut text = b"x".to_vec();
            number.append_field(&mut text);
            assert_eq!(String::from_utf8(text).as_deref(), Ok(&*format!("x{}", number.to_string())));
        }
        (0..20_000).for_each(|number: u32| check(number));
        (0..10_000).for_each(|number: u32| check(number * 10_000 + 9_999 - number));
        for power in (0..64).map(|exponent| 1_u64 << exponent).chain((0..20).map(|exponent| 10_u64.pow(exponent))) {
            for number in power.saturating_sub(1)..=power.saturating_add(1) {
                check(number);
                check(number.cast_signed().wrapping_neg());
                check(number as i8);
            }
        }
        check(u64::MAX);
        check(i64::MIN);
        check(i64::MAX);
        check(u16::MAX);
        check(i32::MIN);
    }
}
