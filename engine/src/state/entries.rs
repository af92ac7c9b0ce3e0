//! How keys, values and timers are laid out where they cross to a plugin: u32
//! length (little-endian) and bytes, one behind the other.

/// Stands for a length where there is no value.
pub(super) const ABSENT: u32 = u32::MAX;

/// A list ends in the middle of an entry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Cut;

/// Reads a list from its front.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Cut> {
        let (array, rest) = self.0.split_first_chunk().ok_or(Cut)?;
        self.0 = rest;
        Ok(*array)
    }

    fn take(&mut self, length: u32) -> Result<&'a [u8], Cut> {
        let (taken, rest) = self.0.split_at_checked(length as usize).ok_or(Cut)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Length and bytes.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Cut> {
        let length = u32::from_le_bytes(self.array()?);
        self.take(length)
    }

    /// Length and bytes, or none.
    pub(super) fn optional(&mut self) -> Result<Option<&'a [u8]>, Cut> {
        match u32::from_le_bytes(self.array()?) {
            ABSENT => Ok(None),
            length => self.take(length).map(Some),
        }
    }
}

/// Writes length and bytes.
pub(super) fn write(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&length(bytes.len()).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// A length as it is written.
pub(super) fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("lists of a plugin are shorter than 4 GiB")
}

/// The elements of a list, up to the first one that is cut off.
pub(super) fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader(list);
    std::iter::from_fn(move || reader.bytes().ok())
}

/// True if a list is whole elements, each of at least so many bytes.
pub(super) fn are_elements(list: &[u8], least: usize) -> bool {
    let mut reader = Reader(list);
    while !reader.0.is_empty() {
        if !reader.bytes().is_ok_and(|element| least <= element.len()) {
            return false;
        }
    }
    true
}
