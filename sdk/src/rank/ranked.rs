//! [`Ranked`]: the best records of one key, in their order.

use std::{cell::OnceCell, marker::PhantomData};

use crate::record::{DecodeError, Nesting, Pair, Reader, Record, TypeDescriptor, Value, decode_value, owned_record};

/// Records of type `T`, best first, each with its timestamp.
///
/// Records are kept encoded, one behind the other, so that types which borrow can be
/// kept as well; beside them what they are ordered by, which is found anew after they
/// were read from the state.
pub(super) struct Ranked<T: ?Sized, O> {
    /// The records, each a `Pair<T, i64>`.
    records: Vec<u8>,
    /// End of each record in `records`.
    ends: Vec<usize>,
    /// What each record is ordered by; empty after reading.
    orders: OnceCell<Vec<O>>,
    _record: PhantomData<fn(&T)>,
}

impl<T: ?Sized, O> Default for Ranked<T, O> {
    fn default() -> Self {
        Self { records: Vec::new(), ends: Vec::new(), orders: OnceCell::from(Vec::new()), _record: PhantomData }
    }
}

impl<T: Record + ?Sized, O: Ord> Ranked<T, O> {
    /// Number of records.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// What the records are ordered by; `order` says it of one.
    #[inline]
    fn orders(&self, order: impl Fn(T::Ref<'_>, i64) -> O) -> &[O] {
        self.orders.get_or_init(|| {
            let of = |place| self.with_record(place, |record, timestamp| order(T::peek(&record), timestamp));
            (0..self.len()).map(of).collect()
        })
    }

    /// The zero-based place that belongs to `new`: behind records of the same order, or, if
    /// `before_equals`, in front of them.
    #[inline]
    pub(super) fn place(&self, new: &O, before_equals: bool, order: impl Fn(T::Ref<'_>, i64) -> O) -> usize {
        let orders = self.orders(order);
        match orders.last() {
            // Most records are worse than all that are kept.
            Some(worst) if worst < new || !before_equals && worst == new => orders.len(),
            _ if before_equals => orders.partition_point(|known| known < new),
            _ => orders.partition_point(|known| known <= new),
        }
    }

    /// Puts a record, encoded as a `Pair<T, i64>`, at a place that [`Ranked::place`] gave; what
    /// stood there and behind it moves down.
    pub(super) fn insert(&mut self, place: usize, order: O, encoded: &[u8]) {
        let Self { records, ends, orders, .. } = self;
        let orders = orders.get_mut().expect("a place was looked for");
        if ends.is_empty() {
            // Many keys have one record only.
            records.reserve_exact(encoded.len());
            ends.reserve_exact(1);
            orders.reserve_exact(1);
        }
        let start = place.checked_sub(1).map_or(0, |before| ends[before]);
        records.extend_from_slice(encoded);
        records[start..].rotate_right(encoded.len());
        ends[place..].iter_mut().for_each(|end| *end += encoded.len());
        ends.insert(place, start + encoded.len());
        orders.insert(place, order);
    }

    /// Drops all but the best `count` records.
    pub(super) fn truncate(&mut self, count: usize) {
        if count < self.len() {
            self.records.truncate(self.start(count));
            self.ends.truncate(count);
            if let Some(orders) = self.orders.get_mut() {
                orders.truncate(count);
            }
        }
    }

    /// Lends the record at a place, with its timestamp.
    #[inline]
    pub(super) fn with_record<R>(&self, place: usize, f: impl FnOnce(T::View<'_>, i64) -> R) -> R {
        let mut reader = Reader::new(&self.records[self.start(place)..self.ends[place]]);
        let record =
            T::decode_within(&mut reader, |record, reader| i64::read(reader).map(|timestamp| f(record, timestamp)));
        record.flatten().expect("records are kept as they were encoded")
    }

    fn start(&self, place: usize) -> usize {
        place.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}

impl<T: Record + ?Sized, O> Value<'_> for Ranked<T, O> {
    fn descriptor(nesting: Nesting) -> TypeDescriptor {
        TypeDescriptor::List(Box::new(Pair::<T, i64>::descriptor(nesting.inner())))
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.count()?;
        let mut records = reader.clone();
        // A count that lies must not reserve more than the row could hold.
        let mut ends = Vec::with_capacity(count.min(reader.remaining()));
        for _ in 0..count {
            Pair::<T, i64>::decode_within(reader, |_, _| ())?;
            ends.push(records.remaining() - reader.remaining());
        }
        let records = records.bytes(ends.last().copied().unwrap_or(0))?.to_owned();
        let orders = if ends.is_empty() { OnceCell::from(Vec::new()) } else { OnceCell::new() };
        Ok(Self { records, ends, orders, _record: PhantomData })
    }

    fn write(&self, out: &mut Vec<u8>) {
        u32::try_from(self.ends.len()).expect("fewer records are kept").write(out);
        out.extend_from_slice(&self.records);
    }
}

owned_record!([T: Record + ?Sized, O: Ord + 'static] Ranked<T, O>);
