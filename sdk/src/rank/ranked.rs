//! The best records of one key, in their order.

use std::marker::PhantomData;

use crate::record::{DecodeError, Nesting, Reader, Record, TypeDescriptor, Value};

/// Records of type `T`, best first, each with its timestamp.
///
/// Records are kept encoded, one behind the other, so that types which borrow can be
/// kept as well; beside them what they are ordered by, which is found anew after the
/// rows were read from the state.
pub(crate) struct Ranked<T: ?Sized, O> {
    /// Timestamp (i64) and record of each row.
    rows: Vec<u8>,
    /// End of each row in `rows`.
    ends: Vec<usize>,
    /// What each row is ordered by; empty after reading.
    orders: Vec<O>,
    _record: PhantomData<fn(&T)>,
}

impl<T: ?Sized, O> Default for Ranked<T, O> {
    fn default() -> Self {
        Self { rows: Vec::new(), ends: Vec::new(), orders: Vec::new(), _record: PhantomData }
    }
}

impl<T: Record + ?Sized, O: Ord> Ranked<T, O> {
    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Finds what the rows are ordered by, if that is not known yet.
    #[inline]
    pub(crate) fn restore_orders(&mut self, order: impl Fn(T::Ref<'_>, i64) -> O) {
        if self.orders.len() < self.len() {
            let orders = (0..self.len()).map(|index| self.with_row(index, |record, timestamp| {
                order(T::peek(&record), timestamp)
            }));
            self.orders = orders.collect();
        }
    }

    /// The zero-based place that belongs to `order`: behind rows of the same order, or before them.
    #[inline]
    pub(crate) fn place(&self, order: &O, before_equals: bool) -> usize {
        if before_equals {
            self.orders.partition_point(|known| known < order)
        } else if self.orders.last().is_none_or(|worst| worst <= order) {
            // Most records are worse than all that are kept.
            self.orders.len()
        } else {
            self.orders.partition_point(|known| known <= order)
        }
    }

    /// Puts a record at a place; what stood there and behind it moves down.
    pub(crate) fn insert(&mut self, place: usize, order: O, record: T::Ref<'_>, timestamp: i64) {
        let (start, end) = (self.start(place), self.rows.len());
        self.rows.extend_from_slice(&timestamp.to_le_bytes());
        T::encode_within(record, &mut self.rows);
        let bytes = self.rows.len() - end;
        self.rows[start..].rotate_right(bytes);
        self.ends[place..].iter_mut().for_each(|end| *end += bytes);
        self.ends.insert(place, start + bytes);
        self.orders.insert(place, order);
    }

    /// Drops all but the best `count` rows.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.rows.truncate(self.start(count.min(self.len())));
        self.ends.truncate(count);
        self.orders.truncate(count);
    }

    /// Lends the row at a place, with its timestamp.
    #[inline]
    pub(crate) fn with_row<R>(&self, place: usize, f: impl FnOnce(T::View<'_>, i64) -> R) -> R {
        let mut reader = Reader::new(&self.rows[self.start(place)..self.ends[place]]);
        let timestamp = i64::read(&mut reader).expect("rows begin with a timestamp");
        T::decode_within(&mut reader, |record, _| f(record, timestamp)).expect("rows are kept as they were encoded")
    }

    fn start(&self, place: usize) -> usize {
        place.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

impl<T: Record + ?Sized, O> Value<'_> for Ranked<T, O> {
    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        let (row, field) = (nesting.inner(), nesting.inner().inner());
        let fields = vec![<i64 as Value<'_>>::descriptor(field), T::descriptor(field)];
        let _ = row;
        TypeDescriptor::List(Box::new(TypeDescriptor::Tuple(fields)))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count()?;
        let all = reader.clone();
        let mut ends = Vec::new();
        for _ in 0..count {
            i64::read(reader)?;
            T::decode_within(reader, |_, _| ())?;
            ends.push(all.remaining() - reader.remaining());
        }
        let rows = all.clone().bytes(ends.last().copied().unwrap_or(0))?.to_owned();
        Ok(Self { rows, ends, orders: Vec::new(), _record: PhantomData })
    }

    fn write(&self, out: &mut Vec<u8>) {
        u32::try_from(self.ends.len()).expect("there are fewer rows").write(out);
        out.extend_from_slice(&self.rows);
    }
}
