//! [`ListCache`]: a list for each key and namespace, which grows without being read.

use std::{marker::PhantomData, rc::Rc};

use super::{
    Clock, TimeToLive,
    table::{CacheStats, Entry, Slot, Table, mix},
    wire::{Requests, StateId, read_counted, write_absent, write_counted, write_counted_with},
};
use crate::{
    current, host,
    record::{Reader, Record},
};

/// Room that is made for an element before it is written, at most.
const SHORT_ELEMENT_BYTES: usize = 64;
/// Bytes of the length in front of an element.
const LENGTH_BYTES: usize = 4;

/// One declared state of kind list. Elements lie encoded, as the host keeps them.
pub(crate) struct ListCache<T: ?Sized> {
    state: StateId,
    table: Table<List>,
    time_to_live: Option<TimeToLive>,
    clock: Clock,
    /// Places whose elements are to be read by `fetch`.
    missing: Vec<u32>,
    /// Bytes that were appended in this batch.
    appended: usize,
    /// Bytes that the element took which was appended last, if it was short: the next one takes about as many.
    element_bytes: usize,
    writes: Writes,
    reads: Requests,
    scratch: Vec<u8>,
    _element: PhantomData<T>,
}

/// Elements, u32 length and bytes each; bytes begin with the time at which the element ends, if it does.
#[derive(Default)]
struct List {
    bytes: Vec<u8>,
    /// True if the host may have elements in front of these which were not read.
    has_unread: bool,
    /// True if what the host has is void.
    replaces: bool,
    /// Where the bytes begin that the host does not know.
    unsent: usize,
}

impl List {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.has_unread
    }

    /// Drops so many bytes in front, of elements that have ended, once they are half of all: each
    /// element is moved a few times at most. The host drops its own by itself. True if they were dropped.
    fn trim(&mut self, ended: usize) -> bool {
        let is_due = 0 < ended && self.bytes.len() <= 2 * ended;
        if is_due {
            self.bytes.drain(..ended);
            self.unsent = self.unsent.saturating_sub(ended);
        }
        is_due
    }

    /// Bytes of the elements in front that have ended.
    fn ended(&self, now: i64) -> usize {
        let mut elements = Reader::new(&self.bytes);
        let mut ended = 0;
        while 0 < elements.remaining() {
            let element = read_counted(&mut elements).unwrap_or_default();
            if element.first_chunk().is_none_or(|end| now < i64::from_le_bytes(*end)) {
                break;
            }
            ended = self.bytes.len() - elements.remaining();
        }
        ended
    }
}

#[derive(Default)]
struct Writes {
    puts: Requests,
    appends: Requests,
}

impl Writes {
    fn write(&mut self, entry: &Entry<List>, state: u32) {
        let list = &entry.content;
        if list.replaces {
            entry.key.write(&mut self.puts.bytes);
            match list.bytes.is_empty() {
                true => write_absent(&mut self.puts.bytes),
                false => write_counted(&list.bytes, &mut self.puts.bytes),
            }
            self.puts.count += 1;
        } else if list.unsent < list.bytes.len() {
            entry.key.write(&mut self.appends.bytes);
            write_counted(&list.bytes[list.unsent..], &mut self.appends.bytes);
            self.appends.count += 1;
        }
        if self.puts.is_full() || self.appends.is_full() {
            self.send(state);
        }
    }

    /// What replaces goes before what is appended: a list may be cleared and begun anew.
    fn send(&mut self, state: u32) {
        self.puts.send(|count, bytes| host::put_many(state, count, bytes));
        self.appends.send(|count, bytes| host::append_many(state, count, bytes));
    }
}

impl<T: Record + ?Sized> ListCache<T> {
    pub(super) fn new(
        state: StateId,
        (bytes_max, is_complete): (usize, bool),
        clock: Clock,
        stats: Rc<CacheStats>,
    ) -> Self {
        Self {
            state,
            table: Table::new(bytes_max, is_complete, stats),
            time_to_live: None,
            clock,
            missing: Vec::new(),
            appended: 0,
            element_bytes: 0,
            writes: Writes::default(),
            reads: Requests::default(),
            scratch: Vec::new(),
            _element: PhantomData,
        }
    }

    /// As [`super::ValueCache::set_time_to_live`], for each element.
    pub(crate) fn set_time_to_live(&mut self, time_to_live: TimeToLive) {
        self.time_to_live = Some(time_to_live);
    }

    /// As [`super::ValueCache::is_complete`].
    pub(crate) fn is_complete(&self) -> bool {
        self.table.is_complete()
    }

    /// As [`super::ValueCache::begin_batch`].
    pub(crate) fn begin_batch(&mut self) {
        self.appended = 0;
        let touched = self.table.begin_batch();
        for &place in &touched {
            let entry = self.table.entry(place);
            if entry.content.is_empty() {
                self.writes.write(entry, self.state.index);
                self.table.remove(place);
            } else if entry.content.has_unread && entry.content.bytes.is_empty() {
                // Nothing is known of it.
                self.table.remove(place);
            } else {
                let bytes = entry.content.bytes.len();
                self.table.weigh(place, bytes);
            }
        }
        self.table.reuse(touched);
        if self.table.is_over() {
            self.make_room();
        }
    }

    /// First pass over what will be read, only needed while the cache is not complete.
    pub(crate) fn prefetch(&mut self, hash: u32, namespace: &[u8], key: impl FnOnce(&mut Vec<u8>)) {
        let hash = mix(hash, namespace);
        let place = self.table.find_hash(hash).or_else(|| {
            let mut encoded = std::mem::take(&mut self.scratch);
            encoded.clear();
            key(&mut encoded);
            let place = (!encoded.is_empty()).then(|| self.add(hash, &encoded, namespace));
            self.scratch = encoded;
            place
        });
        if let Some(place) = place
            && self.table.entry(place).content.has_unread
        {
            self.missing.push(place);
        }
    }

    /// Ends the first pass: one call that reads what is missing.
    pub(crate) fn fetch(&mut self) {
        let mut missing = std::mem::take(&mut self.missing);
        missing.dedup();
        self.read(&missing);
        missing.clear();
        self.missing = missing;
    }

    /// The place of a list; nothing is read. Good until the next `begin_batch`.
    #[inline]
    pub(crate) fn slot(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> Slot {
        self.table.count_lookup();
        let hash = mix(hash, namespace);
        Slot(match self.table.find(hash, key, namespace) {
            Some(place) => place,
            None => self.add(hash, key, namespace),
        })
    }

    /// The place of a list, if it may have elements; nothing is read. As [`ListCache::slot`],
    /// without an entry for what is surely absent.
    #[inline]
    pub(crate) fn slot_of_some(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> Option<Slot> {
        if self.table.is_complete() {
            self.table.count_lookup();
            return self.table.find(mix(hash, namespace), key, namespace).map(Slot);
        }
        Some(self.slot(hash, key, namespace))
    }

    /// True if elements of the list are in the cache; the host may have others.
    #[inline]
    pub(crate) fn has_known_elements(&self, slot: Slot) -> bool {
        !self.table.entry(slot.0).content.bytes.is_empty()
    }

    /// Appends an element; nothing is read.
    #[inline]
    pub(crate) fn append(&mut self, slot: Slot, element: T::Ref<'_>) {
        let end = self.time_to_live.map(|ttl| self.clock.now().saturating_add(ttl.duration_ms));
        self.table.mark_dirty(slot.0);
        let bytes = &mut self.table.entry_mut(slot.0).content.bytes;
        let length = bytes.len();
        // At once, and not part by part as it is written.
        bytes.reserve(self.element_bytes);
        write_element::<T>(bytes, element, end);
        let written = bytes.len() - length;
        self.element_bytes = written.min(SHORT_ELEMENT_BYTES);
        self.appended += written;
        if self.table.bytes_max() < self.appended {
            self.write_early();
        }
    }

    /// Hands out the elements in their order.
    pub(crate) fn for_each(&mut self, slot: Slot, mut f: impl FnMut(T::View<'_>)) {
        self.read_whole(slot);
        let now = self.time_to_live.map(|_| self.clock.now());
        if let Some(TimeToLive { duration_ms, on_read: true }) = self.time_to_live {
            self.live_on(slot, duration_ms);
        }
        let Self { table, state, .. } = self;
        let entry = table.entry(slot.0);
        let mut elements = Reader::new(&entry.content.bytes);
        // Bytes of the elements in front that have ended.
        let (length, mut ended) = (elements.remaining(), 0);
        while 0 < elements.remaining() {
            let Some(mut element) = read_counted(&mut elements) else { continue };
            if let Some(now) = now {
                match state.read_end::<T>(entry.key.key(), element) {
                    Some((end, value)) if now < end => element = value,
                    Some(_) => {
                        let behind = length - elements.remaining();
                        if behind - element.len() - LENGTH_BYTES == ended {
                            ended = behind;
                        }
                        continue;
                    }
                    None => return,
                }
            }
            if let Err(error) = T::decode(element, &mut f) {
                return state.not_a_value::<T>(entry.key.key(), error);
            }
        }
        if 0 < ended && self.table.entry_mut(slot.0).content.trim(ended) {
            self.table.touch(slot.0);
        }
    }

    /// True if the list has no elements.
    pub(crate) fn is_empty(&mut self, slot: Slot) -> bool {
        if self.time_to_live.is_none() && !self.table.entry(slot.0).content.bytes.is_empty() {
            return false;
        }
        let mut is_empty = true;
        self.for_each(slot, |_| is_empty = false);
        is_empty
    }

    /// Replaces the elements; nothing is read. No elements are no list.
    pub(crate) fn replace<'v>(&mut self, slot: Slot, elements: impl IntoIterator<Item = T::Ref<'v>>) {
        let end = self.time_to_live.map(|ttl| self.clock.now().saturating_add(ttl.duration_ms));
        let value_bytes_max = self.state.value_bytes_max;
        let list = self.empty(slot);
        for element in elements {
            write_element::<T>(&mut list.bytes, element, end);
            if value_bytes_max < list.bytes.len() {
                break;
            }
        }
        let entry = self.table.entry(slot.0);
        self.state.check_length(&entry.key, entry.content.bytes.len());
        self.appended += entry.content.bytes.len();
        if self.table.bytes_max() < self.appended && !current::failed() {
            self.write_early();
        }
    }

    /// Drops the elements; nothing is read.
    pub(crate) fn clear(&mut self, slot: Slot) {
        self.empty(slot);
    }

    /// Moves the elements of one list behind those of another.
    pub(crate) fn move_to(&mut self, from: Slot, to: Slot) {
        self.read_whole(from);
        let bytes = std::mem::take(&mut self.table.entry_mut(from.0).content.bytes);
        self.empty(from);
        self.table.mark_dirty(to.0);
        self.table.entry_mut(to.0).content.bytes.extend_from_slice(&bytes);
        self.appended += bytes.len();
        if self.table.bytes_max() < self.appended {
            self.write_early();
        }
    }

    /// As [`super::ValueCache::flush`].
    pub(crate) fn flush(&mut self) {
        let now = self.time_to_live.map(|_| self.clock.now());
        let mut trimmed = Vec::new();
        let Self { table, writes, state, .. } = self;
        for (place, entry) in table.places_mut(0) {
            if entry.is_dirty {
                if now.is_some_and(|now| entry.content.trim(entry.content.ended(now))) {
                    trimmed.push(place);
                }
                writes.write(entry, state.index);
                let list = &mut entry.content;
                entry.is_dirty = false;
                entry.is_in_host = list.has_unread || !list.bytes.is_empty();
                list.replaces = false;
                if list.has_unread {
                    // They are part of what is read.
                    list.bytes.clear();
                }
                list.unsent = list.bytes.len();
            }
        }
        writes.send(state.index);
        for place in trimmed {
            table.touch(u32::try_from(place).expect("places are u32"));
        }
    }

    /// As [`super::ValueCache::stats`].
    #[cfg(test)]
    pub(super) fn stats(&self) -> &CacheStats {
        &self.table.stats
    }

    #[cold]
    fn add(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> u32 {
        let place = self.table.insert(hash, key, namespace);
        let has_unread = !self.table.is_complete();
        let entry = self.table.entry_mut(place);
        entry.content.has_unread = has_unread;
        entry.is_in_host = has_unread;
        place
    }

    /// A list without elements, whatever there were.
    fn empty(&mut self, slot: Slot) -> &mut List {
        self.table.mark_dirty(slot.0);
        let entry = self.table.entry_mut(slot.0);
        let list = &mut entry.content;
        list.bytes.clear();
        list.has_unread = false;
        list.replaces = entry.is_in_host;
        list.unsent = 0;
        list
    }

    fn read_whole(&mut self, slot: Slot) {
        if self.table.entry(slot.0).content.has_unread {
            self.read(&[slot.0]);
        }
    }

    /// Lets the elements of a list that were read live on, but those that have ended.
    fn live_on(&mut self, slot: Slot, duration_ms: i64) {
        let now = self.clock.now();
        self.table.mark_dirty(slot.0);
        let entry = self.table.entry_mut(slot.0);
        let list = &mut entry.content;
        list.replaces = entry.is_in_host;
        list.unsent = 0;
        let mut at = 0;
        while let Some(length) = list.bytes.get(at..at + 4) {
            let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
            if let Some(end) = list.bytes[at + 4..].first_chunk_mut::<8>()
                && now < i64::from_le_bytes(*end)
            {
                *end = now.saturating_add(duration_ms).to_le_bytes();
            }
            at += 4 + length;
        }
    }

    /// Reads what the host has, in front of what was appended.
    fn read(&mut self, places: &[u32]) {
        // The host may not be asked for what it was not told yet.
        self.writes.send(self.state.index);
        let Self { table, state, reads, .. } = self;
        for place in places {
            table.entry(*place).key.write(&mut reads.bytes);
            reads.count += 1;
        }
        table.count_misses(places.len());
        let lists = reads.send(|count, bytes| host::get_many(state.index, count, bytes)).unwrap_or_default();
        let mut lists = Reader::new(&lists);
        for place in places {
            let stored = read_counted(&mut lists).unwrap_or_default();
            let entry = table.entry_mut(*place);
            let list = &mut entry.content;
            if list.has_unread {
                list.has_unread = false;
                entry.is_in_host = !stored.is_empty();
                list.bytes.splice(..0, stored.iter().copied());
                list.unsent += stored.len();
            }
        }
    }

    /// Lets the host know what changed, and keeps none of it, before the batch ends: it alone
    /// is more than the cache may take.
    #[cold]
    fn write_early(&mut self) {
        self.flush();
        self.appended = 0;
        self.table.set_incomplete();
        for place in self.table.touched().to_vec() {
            let entry = self.table.entry_mut(place);
            entry.content = List { has_unread: entry.is_in_host, ..List::default() };
            self.table.weigh(place, 0);
        }
    }

    fn make_room(&mut self) {
        let Self { table, writes, state, .. } = self;
        table.evict(|_, entry| {
            if entry.is_dirty {
                writes.write(entry, state.index);
            }
        });
        writes.send(state.index);
    }
}

fn write_element<T: Record + ?Sized>(out: &mut Vec<u8>, element: T::Ref<'_>, end: Option<i64>) {
    write_counted_with(out, |out| {
        if let Some(end) = end {
            out.extend_from_slice(&end.to_le_bytes());
        }
        T::encode(element, out);
    });
}
