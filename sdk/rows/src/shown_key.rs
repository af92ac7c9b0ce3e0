//! Keys of state in messages.

use std::fmt;

/// Bytes of a key that are shown.
const SHOWN_BYTES: usize = 40;

/// An encoded key as messages show it: shortened, in quotes; bytes that are no text are escaped.
pub struct ShownKey<'a>(pub &'a [u8]);

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = match std::str::from_utf8(self.0) {
            Ok(text) if !text.chars().any(char::is_control) => {
                let cut = &text[..text.floor_char_boundary(SHOWN_BYTES)];
                write!(formatter, "{cut:?}")?;
                cut.len()
            }
            Ok(_) | Err(_) => {
                let cut = &self.0[..self.0.len().min(SHOWN_BYTES)];
                write!(formatter, "\"{}\"", cut.escape_ascii())?;
                cut.len()
            }
        };
        if shown < self.0.len() { write!(formatter, "… of {} bytes", self.0.len()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::ShownKey;

    #[test]
    fn keys_are_shown_as_text_if_they_are_text() {
        let long = "key ".repeat(12);
        // The 40th byte is the first half of a letter.
        let cyrillic = format!("k{}", "ж".repeat(40));
        for (key, shown) in [
            (&7_u64.to_le_bytes()[..], r#""\x07\x00\x00\x00\x00\x00\x00\x00""#.to_owned()),
            ("Zoë \"Z\"".as_bytes(), r#""Zoë \"Z\"""#.to_owned()),
            (b"", r#""""#.to_owned()),
            (&long.as_bytes()[..40], format!("\"{}\"", &long[..40])),
            (long.as_bytes(), format!("\"{}\"… of 48 bytes", &long[..40])),
            (cyrillic.as_bytes(), format!("\"k{}\"… of 81 bytes", "ж".repeat(19))),
            ("a\nb".as_bytes(), r#""a\nb""#.to_owned()),
            (&[0xff; 41], format!("\"{}\"… of 41 bytes", r"\xff".repeat(40))),
        ] {
            assert_eq!(ShownKey(key).to_string(), shown);
        }
    }
}
