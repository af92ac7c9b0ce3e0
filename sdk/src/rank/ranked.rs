//! [`Ranked`]: the best records of one key, in their order.

use std::{cell::OnceCell, marker::PhantomData};

use crate::record::{DecodeError, Nesting, Pair, Reader, Record, TypeDescriptor, Value, decode_value, owned_record};

/// Records of type `T`, best first, each with its timestamp.
///
/// Records are kept encoded, one behind the other, so that types which borrow can be
/// kept as well; beside them, if they are several, what they are ordered by, which is found
/// anew after they were read from the state. Many keys have one record only, which takes one
/// piece of memory.
pub(super) struct Ranked<T: ?Sized, O> {
    /// The records, each a `Pair<T, i64>`.
    records: Vec<u8>,
    /// Where each record but the first begins in `records`.
    begins: Vec<usize>,
    /// What each of several records is ordered by; not known after reading.
    orders: OnceCell<Vec<O>>,
    _record: PhantomData<fn(&T)>,
}

impl<T: ?Sized, O> Default for Ranked<T, O> {
    fn default() -> Self {
        Self { records: Vec::new(), begins: Vec::new(), orders: OnceCell::new(), _record: PhantomData }
    }
}

impl<T: ?Sized, O> Ranked<T, O> {
    /// Number of records.
    #[inline]
    pub(super) fn len(&self) -> usize {
        // A record has its timestamp at least.
        if self.records.is_empty() { 0 } else { self.begins.len() + 1 }
    }
}

impl<T: Record + ?Sized, O: Ord> Ranked<T, O> {
    /// What a record is ordered by; `order` says it.
    #[inline]
    fn order(&self, place: usize, order: &impl Fn(T::Ref<'_>, i64) -> O) -> O {
        self.with_record(place, |record, timestamp| order(T::peek(&record), timestamp))
    }

    /// The zero-based place that belongs to `new`: behind records of the same order, or, if
    /// `before_equals`, in front of them. `order` says what a record is ordered by.
    #[inline]
    pub(super) fn place(&self, new: &O, before_equals: bool, order: impl Fn(T::Ref<'_>, i64) -> O) -> usize {
        let is_before = |known: &O| if before_equals { known < new } else { known <= new };
        match self.len() {
            0 => 0,
            1 => usize::from(is_before(&self.order(0, &order))),
            len => {
                let orders = self.orders.get_or_init(|| (0..len).map(|place| self.order(place, &order)).collect());
                // Most records are worse than all that are kept.
                if orders.last().is_some_and(is_before) { len } else { orders.partition_point(is_before) }
            }
        }
    }

    /// Puts a record, encoded as a `Pair<T, i64>`, at a place that [`Ranked::place`] gave; what
    /// stood there and behind it moves down. Keeps at most `count` records, of which it is one.
    pub(super) fn insert(&mut self, place: usize, order: O, encoded: &[u8], count: usize) {
        if count == 1 || self.len() == 0 {
            self.records.clear();
            self.records.reserve_exact(encoded.len());
            self.records.extend_from_slice(encoded);
            return;
        }
        let start = if place == self.len() { self.records.len() } else { self.begin(place) };
        self.records.extend_from_slice(encoded);
        self.records[start..].rotate_right(encoded.len());
        self.begins[place.saturating_sub(1)..].iter_mut().for_each(|begin| *begin += encoded.len());
        if place == 0 {
            self.begins.insert(0, encoded.len());
        } else {
            self.begins.insert(place - 1, start);
        }
        if let Some(orders) = self.orders.get_mut() {
            orders.insert(place, order);
        }
        self.truncate(count);
    }

    /// Drops all but the best `count` records, at least two.
    fn truncate(&mut self, count: usize) {
        if count < self.len() {
            self.records.truncate(self.begin(count));
            self.begins.truncate(count - 1);
            if let Some(orders) = self.orders.get_mut() {
                orders.truncate(count);
            }
        }
    }

    /// Lends the record at a place, with its timestamp.
    #[inline]
    pub(super) fn with_record<R>(&self, place: usize, f: impl FnOnce(T::View<'_>, i64) -> R) -> R {
        let mut reader = Reader::new(&self.records[self.begin(place)..]);
        let record =
            T::decode_within(&mut reader, |record, reader| i64::read(reader).map(|timestamp| f(record, timestamp)));
        record.flatten().expect("records are kept as they were encoded")
    }

    #[inline]
    fn begin(&self, place: usize) -> usize {
        place.checked_sub(1).map_or(0, |before| self.begins[before])
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
        let mut begins = Vec::with_capacity(count.saturating_sub(1).min(reader.remaining()));
        for place in 0..count {
            if 0 < place {
                begins.push(records.remaining() - reader.remaining());
            }
            Pair::<T, i64>::decode_within(reader, |_, _| ())?;
        }
        let records = records.bytes(records.remaining() - reader.remaining())?.to_owned();
        Ok(Self { records, begins, orders: OnceCell::new(), _record: PhantomData })
    }

    fn write(&self, out: &mut Vec<u8>) {
        u32::try_from(self.len()).expect("fewer records are kept").write(out);
        out.extend_from_slice(&self.records);
    }

    fn weigh(&self, _: &mut Vec<u8>) -> usize {
        4 + self.records.len()
    }
}

owned_record!([T: Record + ?Sized, O: Ord + 'static] Ranked<T, O>);
