//! [`ValueCache`]: one value for each key and namespace.

use std::{hint::black_box, rc::Rc};

use engine_rows::row::Rows;

use super::{
    Clock, TimeToLive,
    table::{CacheStats, NOWHERE, Slot, Table, Weighed, mix},
    wire::{Requests, StateId, read_counted, write_absent, write_counted_with},
};
use crate::{
    current, host,
    record::{Nesting, Owned, Reader, is_fixed_size},
};

/// Values of about this many bytes are read at once.
const PIECE_BYTES: usize = 4 << 20;
/// Restored values are taken to have this many bytes.
const RESTORED_BYTES: usize = 16 << 10;
/// Bytes of the time at which a value ends.
const END_BYTES: usize = 8;
/// Values of the cache that are taken by one call.
const TAKEN_MAX: usize = if cfg!(test) { 3 } else { 4096 };

/// One declared state of kind value, reducing or aggregating.
pub(crate) struct ValueCache<V> {
    state: StateId,
    table: Table<Option<V>>,
    /// When each place's value ends, milliseconds since the Unix epoch; empty without time-to-live.
    ends: Vec<i64>,
    time_to_live: Option<TimeToLive>,
    clock: Clock,
    /// True if all values take the same number of bytes: their entry's.
    is_fixed_size: bool,
    /// Bytes of the longest value that was seen.
    longest: usize,
    /// True if the batch needs more than the cache may take.
    is_crowded: bool,
    /// The row that used the cache last; only known if the batch is crowded.
    row: u32,
    /// Where the rows of the batch will find their entries, in all likelihood.
    hints: Vec<u32>,
    /// The place last lent to be changed: it may be empty, or have grown.
    lent: u32,
    /// Places that were found empty in this batch.
    emptied: Vec<u32>,
    /// Places whose values are to be read by `fetch`.
    missing: Vec<u32>,
    writes: Requests,
    reads: Requests,
    scratch: Vec<u8>,
    /// Place from which values are taken next.
    take_at: usize,
}

impl<V: Owned> ValueCache<V> {
    pub(super) fn new(
        state: StateId,
        (bytes_max, is_complete): (usize, bool),
        clock: Clock,
        stats: Rc<CacheStats>,
    ) -> Self {
        Self {
            state,
            table: Table::new(bytes_max, is_complete, stats),
            ends: Vec::new(),
            time_to_live: None,
            clock,
            is_fixed_size: is_fixed_size(&V::descriptor(Nesting::ROOT)),
            longest: if is_complete { 0 } else { RESTORED_BYTES },
            is_crowded: false,
            row: current::NO_ROW,
            hints: Vec::new(),
            lent: NOWHERE,
            emptied: Vec::new(),
            missing: Vec::new(),
            writes: Requests::default(),
            reads: Requests::default(),
            scratch: Vec::new(),
            take_at: 0,
        }
    }

    /// Lets values end. To be called before the state is used.
    pub(crate) fn set_time_to_live(&mut self, time_to_live: TimeToLive) {
        self.time_to_live = Some(time_to_live);
    }

    /// True while nothing was evicted and nothing restored: what is not in the cache is absent.
    pub(crate) fn is_complete(&self) -> bool {
        self.table.is_complete()
    }

    /// Begins a batch: entries touched from here on are pinned, slots of the last batch are void.
    pub(crate) fn begin_batch(&mut self) {
        self.hints.clear();
        self.is_crowded = false;
        self.row = current::row();
        self.end_row();
        if self.table.must_shrink() {
            self.make_room();
        }
    }

    /// Nothing is pinned any more.
    fn end_row(&mut self) {
        self.look_back(NOWHERE);
        let mut emptied = std::mem::take(&mut self.emptied);
        emptied.drain(..).for_each(|place| self.tidy(place));
        self.emptied = emptied;
        let touched = self.table.begin_batch();
        touched.iter().for_each(|place| self.tidy(*place));
        self.table.reuse(touched);
    }

    /// Where a batch needs more than the cache may take, what earlier rows used may leave.
    #[cold]
    fn begin_row(&mut self) {
        self.hints.clear();
        let row = std::mem::replace(&mut self.row, current::row());
        if row != self.row && self.table.is_over() {
            self.end_row();
            self.make_room();
        }
    }

    /// True if the first pass is worth while: entries may be missing, or are so many that
    /// finding them means to wait for memory. It may be left out while the cache is complete.
    pub(crate) fn wants_prefetch(&self) -> bool {
        !self.table.is_complete() || self.table.is_large()
    }

    /// First pass over a batch of rows: [`ValueCache::prefetch`] of each row, then
    /// [`ValueCache::fetch`]. `namespace` is that of a row's timestamp; none for a row without
    /// entry. `key` encodes the key of a row's payload.
    ///
    /// To find an entry is to wait for memory three times, one after the other. Here each step
    /// is taken for all rows, whose waits overlap; slots are then asked for by the number of the row.
    pub(crate) fn prefetch_rows<N: AsRef<[u8]>>(
        &mut self,
        rows: &[u8],
        mut namespace: impl FnMut(i64) -> Option<N>,
        mut key: impl FnMut(&[u8], &mut Vec<u8>),
    ) {
        let mut hints = std::mem::take(&mut self.hints);
        let rows = Rows::new(rows).map_while(Result::ok);
        for row in rows.clone() {
            let namespace = namespace(row.timestamp);
            hints.push(namespace.map_or(NOWHERE, |namespace| self.table.guess(mix(row.key_hash, namespace.as_ref()))));
        }
        let mut present = 0;
        for (row, hint) in rows.zip(&mut hints) {
            let Some(namespace) = namespace(row.timestamp) else { continue };
            if self.table.pin(*hint, mix(row.key_hash, namespace.as_ref())).is_some() {
                // An entry may begin in one line of the core's cache and end in the next.
                present += usize::from(self.table.entry(*hint).content.is_some());
            } else {
                *hint = NOWHERE;
                if !self.table.is_complete() {
                    self.prefetch(row.key_hash, namespace.as_ref(), |out| key(row.payload, out));
                }
            }
        }
        black_box(present);
        self.hints = hints;
        self.fetch();
    }

    /// First pass over a batch, only needed while the cache is not complete: probes by
    /// hash, and notes what is missing. `key` is asked for its encoding only then; if it
    /// appends nothing, since the row cannot be read, nothing is noted.
    #[inline]
    pub(crate) fn prefetch(&mut self, hash: u32, namespace: &[u8], key: impl FnOnce(&mut Vec<u8>)) {
        let hash = mix(hash, namespace);
        if self.table.find_hash(hash).is_none() && self.table.may_be_in_host(hash) {
            let mut encoded = std::mem::take(&mut self.scratch);
            encoded.clear();
            key(&mut encoded);
            if !encoded.is_empty() {
                let place = self.table.insert(hash, &encoded, namespace);
                self.missing.push(place);
            }
            self.scratch = encoded;
        }
    }

    /// Ends the first pass: one call that writes what had to leave, one that reads what is missing.
    pub(crate) fn fetch(&mut self) {
        if self.table.is_over() {
            self.make_room();
        }
        if self.missing.is_empty() {
            return;
        }
        let mut missing = std::mem::take(&mut self.missing);
        let mut rest = &missing[..];
        while !rest.is_empty() && !self.is_crowded {
            let count = match self.is_fixed_size {
                true => rest.len(),
                false => (PIECE_BYTES / self.longest.max(1)).clamp(1, rest.len()),
            };
            let (piece, others) = rest.split_at(count);
            self.read(piece);
            rest = others;
            self.is_crowded = !rest.is_empty() && self.table.is_over();
        }
        rest.iter().for_each(|place| self.table.remove(*place));
        missing.clear();
        self.missing = missing;
    }

    /// The place of an entry, read from the host if it is not there. Good until the next
    /// `begin_batch`, or, in a batch that needs more than the cache may take, the next row.
    #[inline(always)]
    pub(crate) fn slot(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> Slot {
        self.table.count_lookup();
        if !self.is_crowded && self.time_to_live.is_none() {
            let hint = self.hints.get(current::row() as usize);
            if let Some(place) = hint.and_then(|hint| self.table.at(*hint, key, namespace)) {
                return Slot(place);
            }
        }
        self.find_slot(hash, key, namespace)
    }

    #[inline(never)]
    fn find_slot(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> Slot {
        if self.is_crowded {
            self.begin_row();
        }
        let hash = mix(hash, namespace);
        let place = match self.table.find(hash, key, namespace) {
            Some(place) => place,
            None => self.add(hash, key, namespace),
        };
        if self.time_to_live.is_some() {
            self.heed_time(place);
        }
        Slot(place)
    }

    /// The value at a slot.
    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> Option<&V> {
        self.table.entry(slot.0).content.as_ref()
    }

    /// The value at a slot, to be changed: none deletes it.
    #[inline(always)]
    pub(crate) fn value(&mut self, slot: Slot) -> &mut Option<V> {
        if self.is_fixed_size {
            self.look_back(slot.0);
            self.table.entry_mut(slot.0).is_dirty = true;
        } else {
            self.lend(slot);
        }
        if let Some(TimeToLive { duration_ms, .. }) = self.time_to_live {
            self.ends[slot.0 as usize] = self.clock.now().saturating_add(duration_ms);
        }
        &mut self.table.entry_mut(slot.0).content
    }

    /// Notes that a value whose length may change is about to.
    fn lend(&mut self, slot: Slot) {
        self.table.mark_dirty(slot.0);
        if self.lent != slot.0 {
            self.weigh_lent(slot.0);
        }
    }

    /// Lets the host know all that it does not.
    pub(crate) fn flush(&mut self) {
        let Self { table, writes, state, ends, time_to_live, .. } = self;
        for (place, entry) in table.places_mut(0) {
            if entry.is_dirty {
                write_entry(writes, entry, time_to_live.map(|_| ends[place]));
                entry.is_dirty = false;
                entry.is_in_host = entry.content.is_some();
                if writes.is_full() {
                    writes.send(|count, bytes| host::put_many(state.index, count, bytes));
                }
            }
        }
        self.send();
    }

    /// Takes values out of the state at its end, whatever their keys: the next of those in the
    /// cache if `entries` has none, otherwise these, which the host has forgotten. Hands each with
    /// its encoded key to `take`; what is rejected meanwhile is settled for each. Returns true if
    /// the cache has more.
    pub(crate) fn take(&mut self, entries: &[u8], mut take: impl FnMut(&[u8], V)) -> bool {
        if entries.is_empty() {
            return self.take_cached(take);
        }
        let mut entries = Reader::new(entries);
        while 0 < entries.remaining() {
            let [key, _, value] =
                std::array::from_fn(|_| read_counted(&mut entries).expect("an entry that is handed over is whole"));
            let value = match self.time_to_live {
                None => Some(value),
                Some(_) => match self.state.read_end::<V>(key, value) {
                    Some((end, value)) if self.clock.now() < end => Some(value),
                    Some(_) | None => None,
                },
            };
            if let Some(value) = value.and_then(|value| self.state.decode(key, value)) {
                take(key, value);
            }
            if current::interrupted() && !current::settle(None) {
                return false;
            }
        }
        false
    }

    fn take_cached(&mut self, mut take: impl FnMut(&[u8], V)) -> bool {
        if self.take_at == 0 {
            self.begin_batch();
        }
        let Self { table, writes, state, ends, time_to_live, clock, take_at, .. } = self;
        let (mut taken, mut next) = (0, None);
        for (place, entry) in table.places_mut(*take_at) {
            if taken == TAKEN_MAX {
                next = Some(place);
                break;
            }
            taken += 1;
            if entry.is_in_host {
                entry.key.write(&mut writes.bytes);
                write_absent(&mut writes.bytes);
                writes.count += 1;
                if writes.is_full() {
                    writes.send(|count, bytes| host::put_many(state.index, count, bytes));
                }
            }
            if let Some(value) = entry.content.take()
                && (time_to_live.is_none() || clock.now() < ends[place])
            {
                take(entry.key.key(), value);
            }
            if current::interrupted() && !current::settle(None) {
                return false;
            }
        }
        if next.is_none() {
            table.clear();
        }
        *take_at = next.unwrap_or(0);
        self.send();
        next.is_some()
    }

    /// What the cache did so far.
    #[cfg(test)]
    pub(super) fn stats(&self) -> &CacheStats {
        &self.table.stats
    }

    /// Notes the place that was lent last if it was emptied.
    #[inline]
    fn look_back(&mut self, next: u32) {
        let lent = std::mem::replace(&mut self.lent, next);
        if lent != NOWHERE && self.table.entry(lent).content.is_none() {
            self.emptied.push(lent);
        }
    }

    /// Weighs the place that was lent last, unless it was weighed in this batch.
    #[inline]
    fn weigh_lent(&mut self, next: u32) {
        let lent = std::mem::replace(&mut self.lent, next);
        if lent != NOWHERE && self.table.entry(lent).weighed == Weighed::No {
            self.weigh_early(lent);
        }
        let next = self.table.entry_mut(next);
        if next.weighed == Weighed::Yes {
            next.weighed = Weighed::Stale;
        }
    }

    /// Weighs a changed entry before the batch ends: what it needs may be more than the cache may take.
    fn weigh_early(&mut self, place: u32) {
        if self.table.entry(place).content.is_none() {
            return;
        }
        self.weigh_changed(place);
        self.table.entry_mut(place).weighed = Weighed::Yes;
        if self.table.is_far_over() && !self.is_crowded {
            self.is_crowded = true;
            self.row = current::row();
        }
    }

    /// Weighs an entry; fails the call if it was changed to a value that is too long.
    fn weigh_changed(&mut self, place: u32) {
        let bytes = self.weigh(place);
        let entry = self.table.entry(place);
        if entry.is_dirty {
            self.state.check_length(&entry.key, bytes + self.time_to_live.map_or(0, |_| END_BYTES));
        }
    }

    /// Removes an entry that holds nothing; weighs another.
    fn tidy(&mut self, place: u32) {
        let entry = self.table.entry(place);
        if entry.content.is_some() {
            if !self.is_fixed_size {
                if entry.weighed != Weighed::Yes {
                    self.weigh_changed(place);
                }
                self.table.entry_mut(place).weighed = Weighed::No;
            }
        } else if !entry.is_vacant() {
            if entry.is_in_host {
                self.write(place);
            }
            self.table.remove(place);
        }
    }

    #[cold]
    fn add(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> u32 {
        let place = self.table.insert(hash, key, namespace);
        if !self.ends.is_empty() || self.time_to_live.is_some() {
            self.ends.resize(self.ends.len().max(place as usize + 1), i64::MAX);
        }
        if self.table.may_be_in_host(hash) {
            self.read(&[place]);
            if self.table.is_over() && !self.is_crowded {
                self.is_crowded = true;
                self.row = current::row();
            }
        }
        place
    }

    /// Reads the values at places from the host.
    fn read(&mut self, places: &[u32]) {
        // The host may not be asked for what it was not told yet.
        self.send();
        let Self { table, state, reads, ends, time_to_live, .. } = self;
        for place in places {
            table.entry(*place).key.write(&mut reads.bytes);
            reads.count += 1;
        }
        table.count_misses(places.len());
        let values = reads.send(|count, bytes| host::get_many(state.index, count, bytes)).unwrap_or_default();
        let mut values = Reader::new(&values);
        for place in places {
            let mut value = read_counted(&mut values);
            let entry = table.entry_mut(*place);
            if time_to_live.is_some() {
                ends.resize(ends.len().max(*place as usize + 1), i64::MAX);
                value = value.and_then(|bytes| state.read_end::<V>(entry.key.key(), bytes)).map(|(end, value)| {
                    ends[*place as usize] = end;
                    value
                });
            }
            entry.is_in_host = value.is_some();
            entry.content = value.and_then(|bytes| state.decode(entry.key.key(), bytes));
        }
        if !self.is_fixed_size {
            for place in places {
                self.weigh(*place);
            }
        }
    }

    /// Drops a value whose time is over; one that was read lives on, if it shall.
    fn heed_time(&mut self, place: u32) {
        let Some(TimeToLive { duration_ms, on_read }) = self.time_to_live else {
            return;
        };
        let entry = self.table.entry_mut(place);
        if entry.content.is_none() {
            return;
        }
        let now = self.clock.now();
        let end = &mut self.ends[place as usize];
        if *end <= now {
            entry.content = None;
            self.table.mark_dirty(place);
        } else if on_read {
            *end = now.saturating_add(duration_ms);
            self.table.mark_dirty(place);
        }
    }

    /// Weighs an entry; returns the bytes of its value.
    fn weigh(&mut self, place: u32) -> usize {
        let Self { table, scratch, .. } = self;
        let bytes = table.entry(place).content.as_ref().map_or(0, |value| V::weigh(value, scratch));
        table.weigh(place, bytes);
        self.longest = self.longest.max(bytes);
        bytes
    }

    /// Notes an entry to be written.
    fn write(&mut self, place: u32) {
        let end = self.time_to_live.map(|_| self.ends[place as usize]);
        write_entry(&mut self.writes, self.table.entry(place), end);
        if self.writes.is_full() {
            self.send();
        }
    }

    fn make_room(&mut self) {
        let Self { table, writes, state, ends, time_to_live, .. } = self;
        table.evict(|place, entry| {
            if entry.is_dirty {
                write_entry(writes, entry, time_to_live.map(|_| ends[place]));
                if writes.is_full() {
                    writes.send(|count, bytes| host::put_many(state.index, count, bytes));
                }
            }
        });
        self.send();
    }

    fn send(&mut self) {
        let Self { writes, state, .. } = self;
        writes.send(|count, bytes| host::put_many(state.index, count, bytes));
    }
}

fn write_entry<V: Owned>(writes: &mut Requests, entry: &super::table::Entry<Option<V>>, end: Option<i64>) {
    entry.key.write(&mut writes.bytes);
    match &entry.content {
        None => write_absent(&mut writes.bytes),
        Some(value) => write_counted_with(&mut writes.bytes, |out| {
            if let Some(end) = end {
                out.extend_from_slice(&end.to_le_bytes());
            }
            V::encode(value, out);
        }),
    }
    writes.count += 1;
}
