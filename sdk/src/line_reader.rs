//! Records from lines of JSON or comma-separated values, for operators and sources of
//! a program's own: by the same code that file and socket sources are read with.

use std::{cell::RefCell, marker::PhantomData, mem};

use engine_rows::{csv, json};

use crate::{
    error::{Error, Result},
    record::{Nesting, Record},
};

/// Reads records of type `T` from lines of JSON: only the fields that the type names.
///
/// Fields that the type borrows, such as `&str`, need no allocation. What JSON each type
/// takes is described at [`json`](engine_rows::json).
///
/// ```
/// use engine_sdk::{JsonReader, Record};
///
/// #[derive(Record)]
/// struct Bid<'a> {
///     price: u64,
///     channel: &'a str,
/// }
///
/// # fn main() -> engine_sdk::Result<()> {
/// let reader = JsonReader::<Bid<'_>>::new()?;
/// let line = r#"{"channel": "Apple", "url": "https://…", "price": 7}"#;
/// let text = reader.read(line, |bid| format!("{} {}", bid.channel, bid.price))?;
/// assert_eq!(text, "Apple 7");
/// let error = reader.read(r#"{"channel": "Apple", "price": -7}"#, |_| ()).unwrap_err();
/// assert_eq!(error.to_string(), "column 31, field \"price\": -7 is out of range for u64");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct JsonReader<T: ?Sized>(Buffered<json::JsonReader>, PhantomData<T>);

impl<T: Record + ?Sized> JsonReader<T> {
    /// A reader, to be used for many lines: it remembers where which field stands.
    ///
    /// # Errors
    /// Returns an error if records of the type cannot be read from JSON.
    pub fn new() -> Result<Self> {
        let reader = json::JsonReader::new(&T::descriptor(Nesting::ROOT))?;
        Ok(Self(Buffered::new(reader), PhantomData))
    }

    /// Lends the record on the line, which has no line end.
    ///
    /// # Errors
    /// Returns an error with column and field if the line is not JSON or does not fit the type.
    pub fn read<R>(&self, line: &str, f: impl FnOnce(T::View<'_>) -> R) -> Result<R> {
        self.0.read::<T, _>(|reader, payload| Ok(reader.read(line, payload)?), f)
    }
}

/// Reads records of type `T`, a struct or tuple of single values, from lines of comma-separated
/// values: RFC 4180, but for line ends within quotes.
///
/// ```
/// use engine_sdk::CsvReader;
///
/// # fn main() -> engine_sdk::Result<()> {
/// let reader = CsvReader::<(String, u32)>::new(b';')?;
/// assert_eq!(reader.read("\"Rome; Italy\";7", |(city, count)| (city, count))?, ("Rome; Italy".to_owned(), 7));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CsvReader<T: ?Sized>(Buffered<csv::CsvReader>, PhantomData<T>);

impl<T: Record + ?Sized> CsvReader<T> {
    /// A reader of lines whose columns stand in the order of the fields, with this delimiter between them.
    ///
    /// # Errors
    /// Returns an error if records of the type cannot be read from comma-separated values.
    pub fn new(delimiter: u8) -> Result<Self> {
        let reader = csv::CsvReader::new(&T::descriptor(Nesting::ROOT), delimiter)?;
        Ok(Self(Buffered::new(reader), PhantomData))
    }

    /// Finds the columns by the names that stand in a header line.
    ///
    /// # Errors
    /// Returns an error if a field that is not optional has no column, or two.
    pub fn set_header(&self, line: &str) -> Result<()> {
        Ok(self.0.buffers.borrow_mut().0.set_header(line)?)
    }

    /// Lends the record on the line, which has no line end.
    ///
    /// # Errors
    /// Returns an error with column and field if the line does not fit the type.
    pub fn read<R>(&self, line: &str, f: impl FnOnce(T::View<'_>) -> R) -> Result<R> {
        self.0.read::<T, _>(|reader, payload| Ok(reader.read(line, payload)?), f)
    }
}

/// A reader and the payload that it fills, used over and over by closures, which cannot change what they hold.
#[derive(Debug)]
struct Buffered<P> {
    buffers: RefCell<(P, Vec<u8>)>,
}

impl<P> Buffered<P> {
    fn new(reader: P) -> Self {
        Self { buffers: RefCell::new((reader, Vec::new())) }
    }

    fn read<T: Record + ?Sized, R>(
        &self,
        read: impl FnOnce(&mut P, &mut Vec<u8>) -> Result<()>,
        f: impl FnOnce(T::View<'_>) -> R,
    ) -> Result<R> {
        let payload = {
            let (reader, payload) = &mut *self.buffers.borrow_mut();
            payload.clear();
            read(reader, payload)?;
            // The closure may read another line by this reader.
            mem::take(payload)
        };
        let outcome = T::decode(&payload, f).map_err(|error| Error::new(error.to_string()));
        self.buffers.borrow_mut().1 = payload;
        outcome
    }
}
