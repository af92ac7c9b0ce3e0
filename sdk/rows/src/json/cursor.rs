//! JSON syntax: white space, strings, numbers, and walking over values that
//! nobody asked for. Knows nothing of types; [`super`] does.
//!
//! Invariant: `at` never passes the end of the text, and what is appended to an
//! output from a string is UTF-8.

use wide::u8x16;

use super::{DEPTH_MAX, JsonError};

/// Errors are boxed so that the result of each step fits into registers.
pub(super) type Parsed<T> = Result<T, Box<JsonError>>;

/// A place in a line of JSON.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    /// Offset of the next byte.
    pub(super) at: usize,
    depth: usize,
    /// True if line ends are white space as any other.
    lines: bool,
}

impl<'a> Cursor<'a> {
    /// For a value that makes up the text.
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0, depth: 0, lines: true }
    }

    /// For a value that ends on the first line of the text, wherever that line ends.
    pub(super) fn of_first_line(text: &'a str) -> Self {
        Self { lines: false, ..Self::new(text) }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.text.as_bytes()
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.bytes().get(self.at).copied()
    }

    /// The bytes from here to the end.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes().get(self.at..).unwrap_or_default()
    }

    #[inline]
    pub(super) fn skip_space(&mut self) {
        while let Some(byte @ (b' ' | b'\t' | b'\n' | b'\r')) = self.peek() {
            if byte == b'\n' && !self.lines {
                return;
            }
            self.at += 1;
        }
    }

    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    pub(super) fn expect(&mut self, byte: u8, expected: &'static str) -> Parsed<()> {
        if self.take(byte) { Ok(()) } else { Err(self.unexpected(expected)) }
    }

    #[inline]
    pub(super) fn take_literal(&mut self, literal: &'static str) -> bool {
        let found = self.rest().starts_with(literal.as_bytes());
        if found {
            self.at += literal.len();
        }
        found
    }

    /// Notes that an object or array was opened.
    #[inline]
    pub(super) fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth < DEPTH_MAX {
            return Ok(());
        }
        Err(self.error(format!("objects and arrays are nested {DEPTH_MAX} deep or more")))
    }

    /// Notes that an object or array was closed.
    #[inline]
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    #[cold]
    pub(super) fn error(&self, problem: impl Into<String>) -> Box<JsonError> {
        self.error_at(self.at, problem)
    }

    #[cold]
    pub(super) fn error_at(&self, offset: usize, problem: impl Into<String>) -> Box<JsonError> {
        Box::new(JsonError { field: String::new(), column: offset + 1, problem: problem.into() })
    }

    /// True within the object or array that makes up the text, and within no other.
    #[inline]
    pub(super) fn is_outermost(&self) -> bool {
        self.depth == 1
    }

    /// Walks to the end of the line, or of the text if its lines are not told apart, whatever stands there.
    #[inline]
    pub(super) fn skip_line(&mut self) {
        let end = if self.lines { None } else { memchr::memchr(b'\n', self.rest()) };
        self.at = end.map_or(self.bytes().len(), |end| self.at + end);
    }

    /// "expected …, found …" at this place.
    #[cold]
    pub(super) fn unexpected(&self, expected: &str) -> Box<JsonError> {
        let found = match self.peek() {
            None => "the end of the line".to_owned(),
            Some(b'"') => "a string".to_owned(),
            Some(b'{') => "an object".to_owned(),
            Some(b'[') => "an array".to_owned(),
            Some(b'-' | b'0'..=b'9') => "a number".to_owned(),
            Some(_) => {
                let rest = &self.text[self.text.floor_char_boundary(self.at)..];
                let word = ["null", "true", "false"].into_iter().find(|word| rest.starts_with(word));
                word.map_or_else(|| format!("{:?}", rest.chars().next().unwrap_or_default()), str::to_owned)
            }
        };
        self.error(format!("expected {expected}, found {found}"))
    }

    /// Walks over `key:` of an object and the space after it.
    #[inline]
    pub(super) fn skip_key(&mut self) -> Parsed<()> {
        self.expect(b'"', "a key in quotes")?;
        self.skip_string()?;
        self.skip_colon()
    }

    #[inline]
    pub(super) fn skip_colon(&mut self) -> Parsed<()> {
        self.skip_space();
        self.expect(b':', "\":\"")?;
        self.skip_space();
        Ok(())
    }

    /// Walks over any value, checking its syntax. As in `serde_json`, escapes of
    /// surrogates need not come in pairs here and numbers may be out of range.
    #[inline(always)]
    pub(super) fn skip_value(&mut self) -> Parsed<()> {
        if self.take(b'"') { self.skip_string() } else { self.skip_other_value() }
    }

    fn skip_other_value(&mut self) -> Parsed<()> {
        const { assert!(DEPTH_MAX <= 128, "one bit for each open container") };
        // The lowest bit tells whether the innermost container is an object.
        let mut objects: u128 = 0;
        let outside = self.depth;
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    self.skip_string()?;
                }
                Some(b'-' | b'0'..=b'9') => {
                    self.skip_number()?;
                }
                Some(open @ (b'{' | b'[')) => {
                    let object = open == b'{';
                    self.enter()?;
                    self.at += 1;
                    self.skip_space();
                    if !self.take(if object { b'}' } else { b']' }) {
                        objects = objects << 1 | u128::from(object);
                        if object {
                            self.skip_key()?;
                        }
                        continue;
                    }
                    self.leave();
                }
                _ if self.take_literal("null") || self.take_literal("true") || self.take_literal("false") => {}
                _ => return Err(self.unexpected("a value")),
            }
            loop {
                if self.depth == outside {
                    return Ok(());
                }
                let object = objects & 1 == 1;
                self.skip_space();
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        self.skip_space();
                        if object {
                            self.skip_key()?;
                        }
                        break;
                    }
                    Some(close @ (b'}' | b']')) if object == (close == b'}') => {
                        self.at += 1;
                        self.leave();
                        objects >>= 1;
                    }
                    _ => return Err(self.unexpected(if object { "\",\" or \"}\"" } else { "\",\" or \"]\"" })),
                }
            }
        }
    }

    /// Walks over the rest of a string, behind its opening quote.
    #[inline(always)]
    pub(super) fn skip_string(&mut self) -> Parsed<()> {
        self.at = find_special(self.bytes(), self.at);
        if self.take(b'"') { Ok(()) } else { self.skip_escaped_string() }
    }

    #[cold]
    fn skip_escaped_string(&mut self) -> Parsed<()> {
        while self.peek() == Some(b'\\') {
            self.escape()?;
            self.at = find_special(self.bytes(), self.at);
        }
        if self.take(b'"') { Ok(()) } else { Err(self.bad_string_byte()) }
    }

    /// Appends the rest of a string, behind its opening quote, without quotes and escapes.
    #[inline]
    pub(super) fn read_string(&mut self, out: &mut Vec<u8>) -> Parsed<()> {
        let start = self.at;
        self.at = find_special(self.bytes(), start);
        out.extend_from_slice(&self.bytes()[start..self.at]);
        if self.take(b'"') { Ok(()) } else { self.read_escaped_string(out) }
    }

    #[cold]
    fn read_escaped_string(&mut self, out: &mut Vec<u8>) -> Parsed<()> {
        while self.peek() == Some(b'\\') {
            let decoded = self.unescape()?;
            out.extend_from_slice(decoded.encode_utf8(&mut [0; 4]).as_bytes());
            let start = self.at;
            self.at = find_special(self.bytes(), start);
            out.extend_from_slice(&self.bytes()[start..self.at]);
        }
        if self.take(b'"') { Ok(()) } else { Err(self.bad_string_byte()) }
    }

    #[cold]
    fn bad_string_byte(&self) -> Box<JsonError> {
        match self.peek() {
            None => self.error("the string is not closed"),
            Some(byte) => self.error(format!("control character {byte:#04x} in a string: write it as an escape")),
        }
    }

    /// The character of an escape sequence, surrogate pairs put together.
    fn unescape(&mut self) -> Parsed<char> {
        let start = self.at;
        let lone = |cursor: &Self| cursor.error_at(start, "escape of half a surrogate pair");
        let unit = self.escape()?;
        let code = match unit {
            0xdc00..=0xdfff => return Err(lone(self)),
            0xd800..=0xdbff => {
                if self.peek() != Some(b'\\') {
                    return Err(lone(self));
                }
                let low @ 0xdc00..=0xdfff = self.escape()? else {
                    return Err(lone(self));
                };
                0x1_0000 + ((unit - 0xd800) << 10 | (low - 0xdc00))
            }
            code => code,
        };
        char::from_u32(code).ok_or_else(|| lone(self))
    }

    /// Takes one escape sequence; returns its UTF-16 code unit.
    fn escape(&mut self) -> Parsed<u32> {
        let start = self.at;
        let Some(&kind) = self.bytes().get(start + 1) else {
            self.at = self.bytes().len();
            return Err(self.error("the string is not closed"));
        };
        self.at += 2;
        let byte = match kind {
            b'"' | b'\\' | b'/' => kind,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => return self.hex4(start),
            _ => return Err(self.error_at(start, "no such escape sequence")),
        };
        Ok(u32::from(byte))
    }

    fn hex4(&mut self, start: usize) -> Parsed<u32> {
        let digits = self.rest().first_chunk::<4>().copied().unwrap_or_default();
        let mut unit = 0;
        for digit in digits {
            let Some(value) = char::from(digit).to_digit(16) else {
                return Err(self.error_at(start, "\\u needs four hexadecimal digits"));
            };
            unit = unit << 4 | value;
        }
        self.at += 4;
        Ok(unit)
    }

    /// Walks over a number; returns its text and whether it is a whole number.
    pub(super) fn skip_number(&mut self) -> Parsed<(&'a str, bool)> {
        let start = self.at;
        self.take(b'-');
        if !self.take(b'0') {
            self.skip_digits()?;
        } else if let Some(b'0'..=b'9') = self.peek() {
            return Err(self.error_at(start, "a number with a leading zero"));
        }
        let mut whole = true;
        if self.take(b'.') {
            whole = false;
            self.skip_digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            whole = false;
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.skip_digits()?;
        }
        Ok((&self.text[start..self.at], whole))
    }

    /// Walks over one digit or more.
    fn skip_digits(&mut self) -> Parsed<()> {
        let Some(b'0'..=b'9') = self.peek() else {
            return Err(self.unexpected("a digit"));
        };
        self.take_digits();
        Ok(())
    }

    /// Takes a whole number without sign of at most 15 digits; None: it is something else.
    #[inline(always)]
    pub(super) fn take_short_integer(&mut self) -> Option<u64> {
        const POWERS: [u64; 8] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000];
        let rest = self.rest();
        let first = u64::from_le_bytes(*rest.first_chunk()?);
        let mut count = digit_count(first);
        let mut value = leading_digits(first, count);
        if count == 8 {
            let second = u64::from_le_bytes(*rest[8..].first_chunk()?);
            let more = digit_count(second);
            let power = POWERS.get(more)?;
            value = value * power + if more == 0 { 0 } else { leading_digits(second, more) };
            count += more;
        }
        let behind = rest.get(count)?;
        let leading_zero = first as u8 == b'0' && count > 1;
        if count == 0 || leading_zero || matches!(behind, b'.' | b'e' | b'E') {
            return None;
        }
        self.at += count;
        Some(value)
    }

    /// Takes the rest of a string without escapes, behind its opening quote; None: it is something else.
    #[inline(always)]
    pub(super) fn take_plain_string(&mut self) -> Option<&'a [u8]> {
        let start = self.at;
        let end = find_special(self.bytes(), start);
        if self.bytes().get(end) != Some(&b'"') {
            return None;
        }
        self.at = end + 1;
        Some(&self.bytes()[start..end])
    }

    /// Takes all digits.
    #[inline]
    fn take_digits(&mut self) {
        while let Some(window) = self.rest().first_chunk() {
            let count = digit_count(u64::from_le_bytes(*window));
            self.at += count;
            if count < 8 {
                return;
            }
        }
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    /// Reads any whole number: whether it is below zero, and its magnitude.
    #[cold]
    pub(super) fn read_unusual_integer(&mut self, expected: &'static str) -> Parsed<(bool, u64)> {
        let start = self.at;
        if !matches!(self.peek(), Some(b'-' | b'0'..=b'9')) {
            return Err(self.unexpected(expected));
        }
        let (text, whole) = self.skip_number()?;
        if !whole || text == "-0" {
            return Err(self.error_at(start, format!("expected {expected}, found {text}")));
        }
        let magnitude = text.trim_start_matches('-').parse();
        let magnitude = magnitude.map_err(|_| self.out_of_range(start, expected))?;
        Ok((text.starts_with('-'), magnitude))
    }

    /// The number that began at `start` does not fit.
    #[cold]
    pub(super) fn out_of_range(&self, start: usize, expected: &'static str) -> Box<JsonError> {
        self.error_at(start, format!("{} is out of range for {expected}", &self.text[start..self.at]))
    }
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// How many of eight bytes, the first one lowest, are digits before the first that is none.
#[inline(always)]
fn digit_count(bytes: u64) -> usize {
    let digits = bytes ^ (ONES * 0x30);
    let others = (digits.wrapping_add(ONES * (0x80 - 10)) | digits) & TOPS;
    others.trailing_zeros() as usize / 8
}

/// The value of the first digits of eight bytes, at least one. Without branches: lengths of numbers vary.
#[inline(always)]
fn leading_digits(bytes: u64, count: usize) -> u64 {
    // Zeros in front; none of the bytes behind the digits is left.
    let padded = (bytes ^ (ONES * 0x30)).wrapping_shl(64 - 8 * count as u32);
    let pairs = padded.wrapping_mul(10).wrapping_add(padded >> 8);
    let upper = (pairs & 0x0000_00ff_0000_00ff).wrapping_mul(0x000f_4240_0000_0064);
    let lower = (pairs >> 16 & 0x0000_00ff_0000_00ff).wrapping_mul(0x0000_2710_0000_0001);
    upper.wrapping_add(lower) >> 32
}

/// Offset of the first quote, backslash or control character at or after `from`,
/// or the length of the text.
#[inline(always)]
fn find_special(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    let Some((first, rest)) = rest.split_first_chunk() else { return find_special_in_tail(text, from) };
    let specials = special_bits(first);
    if specials != 0 {
        return from + specials.trailing_zeros() as usize;
    }
    let (blocks, tail) = rest.as_chunks::<64>();
    for (index, block) in blocks.iter().enumerate() {
        let [a, b, c, d] = block.as_chunks().0 else { break };
        let low = u64::from(special_bits(a)) | u64::from(special_bits(b)) << 16;
        let high = u64::from(special_bits(c)) | u64::from(special_bits(d)) << 16;
        let specials = low | high << 32;
        if specials != 0 {
            return from + 16 + 64 * index + specials.trailing_zeros() as usize;
        }
    }
    find_special_in_tail(text, text.len() - tail.len())
}

/// As [`find_special`], for texts too short for its steps.
#[inline(never)]
fn find_special_in_tail(text: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(block) = text.get(at..).and_then(|rest| rest.first_chunk()) {
        match special_bits(block) {
            0 => at += block.len(),
            specials => return at + specials.trailing_zeros() as usize,
        }
    }
    let tail = text.get(at..).unwrap_or_default();
    let found = tail.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
    found.map_or(text.len(), |found| at + found)
}

/// A bit for each quote, backslash and control character.
#[inline(always)]
fn special_bits(block: &[u8; 16]) -> u32 {
    let bytes = u8x16::new(*block);
    // The exclusive or puts the quote right behind the control characters.
    let shifted = bytes ^ u8x16::splat(2);
    let others = shifted.min(u8x16::splat(0x20)).simd_eq(shifted);
    (others | bytes.simd_eq(u8x16::splat(b'\\'))).to_bitmask()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_counted_and_valued() {
        for (text, count, value) in [
            (*b"12345678", 8, 12_345_678),
            (*b"1234567,", 7, 1_234_567),
            (*b"0000001}", 7, 1),
            (*b"9,999999", 1, 9),
            (*b"1:\xff\xff\xff\xff\xff\xff", 1, 1),
            (*b"42/55555", 2, 42),
            (*b"99999999", 8, 99_999_999),
        ] {
            let bytes = u64::from_le_bytes(text);
            assert_eq!((digit_count(bytes), leading_digits(bytes, count)), (count, value), "{text:?}");
        }
        assert_eq!(digit_count(u64::from_le_bytes(*b",2345678")), 0);
    }

    #[test]
    fn special_bytes_are_found_wherever_they_stand() {
        let is_special = |byte: u8| byte == b'"' || byte == b'\\' || byte < 0x20;
        for byte in 0..=u8::MAX {
            for at in 0..200 {
                let mut text = [b'x'; 200];
                text[at] = byte;
                let expected = if is_special(byte) { at } else { 200 };
                assert_eq!(find_special(&text, 0), expected, "{byte:#x} at {at}");
                assert_eq!(find_special(&text, at), expected, "{byte:#x} at {at}");
            }
        }
    }
}
