//! [`MapCache`]: a map for each key and namespace, ordered by the bytes of its keys.

use std::{collections::BTreeMap, ops::Bound, ops::ControlFlow, rc::Rc};

use super::{
    Clock, TimeToLive,
    table::{CacheStats, Entry, Slot, Table, mix},
    wire::{KeyBytes, Requests, StateId, read_counted, write_absent, write_counted, write_counted_with},
};
use crate::{
    host,
    record::{Nesting, Owned, Reader, is_fixed_size},
};

/// Maps of up to this many bytes are read whole.
const WHOLE_BYTES_MAX: u32 = 32 << 10;
/// Bytes of a map that are read at once when it is walked over.
const PAGE_BYTES: u32 = 64 << 10;
/// Bytes of a pair beside key and value, about.
const PAIR_BYTES: usize = 64;

/// One declared state of kind map. Keys of maps are bytes here: whoever needs an
/// order encodes them so.
pub(crate) struct MapCache<V> {
    state: StateId,
    table: Table<Map<V>>,
    time_to_live: Option<TimeToLive>,
    clock: Clock,
    is_fixed_size: bool,
    missing: Vec<u32>,
    /// Bytes of pairs that were set or read one by one in this batch, about.
    gathered: usize,
    writes: Writes,
    reads: Requests,
    scratch: Vec<u8>,
}

struct Map<V> {
    pairs: BTreeMap<Box<[u8]>, Pair<V>>,
    /// True if the host has pairs that are not here: the map is large.
    has_unread: bool,
    /// True if what the host has is void, but for what is written after this.
    is_cleared: bool,
    /// Encoded bytes of the pairs, about.
    bytes: usize,
}

struct Pair<V> {
    value: Option<V>,
    /// Milliseconds since the Unix epoch; the greatest i64 without time-to-live.
    end: i64,
    is_dirty: bool,
    /// True if the host has, or may have, this pair.
    is_in_host: bool,
    bytes: usize,
}

impl<V> Default for Map<V> {
    fn default() -> Self {
        Self { pairs: BTreeMap::new(), has_unread: false, is_cleared: false, bytes: 0 }
    }
}

impl<V> Map<V> {
    fn insert(&mut self, key: &[u8], mut pair: Pair<V>, value_bytes: usize) {
        pair.bytes = PAIR_BYTES + key.len() + value_bytes;
        self.bytes += pair.bytes;
        if let Some(old) = self.pairs.insert(key.into(), pair) {
            self.bytes -= old.bytes;
        }
    }
}

#[derive(Default)]
struct Writes {
    clears: Requests,
    puts: Requests,
}

impl Writes {
    /// Notes what the host does not know of a map, and that it will.
    fn write<V: Owned>(&mut self, entry: &mut Entry<Map<V>>, state: u32, has_ends: bool) {
        let Entry { content, key, is_in_host, is_dirty, .. } = entry;
        if std::mem::take(&mut content.is_cleared) {
            // Pairs that were put before the clear must not come after it.
            if self.puts.count != 0 {
                self.send(state);
            }
            key.write(&mut self.clears.bytes);
            self.clears.count += 1;
        }
        for (map_key, pair) in content.pairs.iter_mut().filter(|(_, pair)| pair.is_dirty) {
            self.put(key, map_key, pair.value.as_ref(), has_ends.then_some(pair.end));
            pair.is_dirty = false;
            pair.is_in_host = pair.value.is_some();
            if self.puts.is_full() {
                self.clears.send(|count, bytes| host::clear_many(state, count, bytes));
                self.puts.send(|count, bytes| host::put_many(state, count, bytes));
            }
        }
        *is_dirty = false;
        *is_in_host = content.has_unread || content.pairs.values().any(|pair| pair.is_in_host);
    }

    /// Notes a pair, or that there is none.
    fn put<V: Owned>(&mut self, key: &KeyBytes, map_key: &[u8], value: Option<&V>, end: Option<i64>) {
        key.write(&mut self.puts.bytes);
        write_counted(map_key, &mut self.puts.bytes);
        match value {
            None => write_absent(&mut self.puts.bytes),
            Some(value) => write_counted_with(&mut self.puts.bytes, |out| {
                if let Some(end) = end {
                    out.extend_from_slice(&end.to_le_bytes());
                }
                V::encode(value, out);
            }),
        }
        self.puts.count += 1;
    }

    fn send(&mut self, state: u32) {
        self.clears.send(|count, bytes| host::clear_many(state, count, bytes));
        self.puts.send(|count, bytes| host::put_many(state, count, bytes));
    }
}

impl<V: Owned> MapCache<V> {
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
            is_fixed_size: is_fixed_size(&V::descriptor(Nesting::ROOT)),
            missing: Vec::new(),
            gathered: 0,
            writes: Writes::default(),
            reads: Requests::default(),
            scratch: Vec::new(),
        }
    }

    /// As [`super::ValueCache::set_time_to_live`], for each pair.
    pub(crate) fn set_time_to_live(&mut self, time_to_live: TimeToLive) {
        self.time_to_live = Some(time_to_live);
    }

    /// As [`super::ValueCache::is_complete`].
    pub(crate) fn is_complete(&self) -> bool {
        self.table.is_complete()
    }

    /// As [`super::ValueCache::begin_batch`].
    pub(crate) fn begin_batch(&mut self) {
        self.gathered = 0;
        let touched = self.table.begin_batch();
        for &place in &touched {
            let entry = self.table.entry_mut(place);
            let is_empty = !entry.content.has_unread && entry.content.pairs.values().all(|pair| pair.value.is_none());
            if is_empty {
                if entry.is_dirty {
                    self.writes.write(entry, self.state.index, self.time_to_live.is_some());
                }
                self.table.remove(place);
            } else {
                let bytes = entry.content.bytes;
                self.table.weigh(place, bytes);
            }
        }
        self.table.reuse(touched);
        if self.table.must_shrink() {
            self.make_room();
        }
    }

    /// As [`super::ValueCache::prefetch`].
    #[inline]
    pub(crate) fn prefetch(&mut self, hash: u32, namespace: &[u8], key: impl FnOnce(&mut Vec<u8>)) {
        let hash = mix(hash, namespace);
        if self.table.find_hash(hash).is_none() {
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

    /// As [`super::ValueCache::fetch`].
    pub(crate) fn fetch(&mut self) {
        if self.missing.is_empty() {
            return;
        }
        if self.table.is_over() {
            self.make_room();
        }
        let mut missing = std::mem::take(&mut self.missing);
        self.load(&missing);
        missing.clear();
        self.missing = missing;
    }

    /// The place of a map, read from the host if it is not there and not large.
    /// Good until the next `begin_batch`.
    #[inline]
    pub(crate) fn slot(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> Slot {
        self.table.count_lookup();
        let hash = mix(hash, namespace);
        Slot(match self.table.find(hash, key, namespace) {
            Some(place) => place,
            None => self.add(hash, key, namespace),
        })
    }

    /// The value of a key of the map.
    pub(crate) fn get(&mut self, slot: Slot, map_key: &[u8]) -> Option<&V> {
        self.known(slot, map_key)?;
        let time_to_live = self.time_to_live;
        if let Some(TimeToLive { duration_ms, on_read: true }) = time_to_live {
            let end = self.clock.now().saturating_add(duration_ms);
            self.table.mark_dirty(slot.0);
            let pair = self.table.entry_mut(slot.0).content.pairs.get_mut(map_key)?;
            pair.end = end;
            pair.is_dirty = true;
        }
        self.table.entry(slot.0).content.pairs.get(map_key)?.value.as_ref()
    }

    /// Sets the value of a key of the map; nothing is read.
    pub(crate) fn put(&mut self, slot: Slot, map_key: &[u8], value: V) {
        self.set(slot, map_key, Some(value));
    }

    /// Removes a key of the map; nothing is read.
    pub(crate) fn remove(&mut self, slot: Slot, map_key: &[u8]) {
        self.set(slot, map_key, None);
    }

    /// Changes the value of a key of the map in place: none removes it.
    pub(crate) fn modify<R>(&mut self, slot: Slot, map_key: &[u8], f: impl FnOnce(&mut Option<V>) -> R) -> R {
        self.known(slot, map_key);
        let pair = self.table.entry_mut(slot.0).content.pairs.get_mut(map_key);
        let mut value = pair.and_then(|pair| pair.value.take());
        let result = f(&mut value);
        self.set(slot, map_key, value);
        result
    }

    /// Drops all pairs; nothing is read.
    pub(crate) fn clear(&mut self, slot: Slot) {
        self.table.mark_dirty(slot.0);
        let entry = self.table.entry_mut(slot.0);
        entry.content = Map { is_cleared: entry.is_in_host, ..Map::default() };
    }

    /// True if the map has no pairs.
    pub(crate) fn is_empty(&mut self, slot: Slot) -> bool {
        let mut is_empty = true;
        self.walk(slot, &[], None, |_, _| {
            is_empty = false;
            ControlFlow::Break(())
        });
        is_empty
    }

    /// Walks over the pairs from key `from` on (itself included), in the order of the keys' bytes.
    /// Those that are handed out are read, and live on if reading makes them.
    pub(crate) fn scan(&mut self, slot: Slot, from: &[u8], f: impl FnMut(&[u8], &V) -> ControlFlow<()>) {
        let on_read = self.time_to_live.filter(|ttl| ttl.on_read);
        let end = on_read.map(|ttl| self.clock.now().saturating_add(ttl.duration_ms));
        self.walk(slot, from, end, f);
    }

    /// As [`MapCache::scan`]; pairs that are handed out live on until `end`, if there is one.
    fn walk(&mut self, slot: Slot, from: &[u8], end: Option<i64>, mut f: impl FnMut(&[u8], &V) -> ControlFlow<()>) {
        let now = self.time_to_live.map(|_| self.clock.now());
        if self.table.entry(slot.0).content.has_unread {
            return self.walk_host(slot, from, (now, end), f);
        }
        if end.is_some() {
            self.table.mark_dirty(slot.0);
        }
        let pairs = &mut self.table.entry_mut(slot.0).content.pairs;
        for (map_key, pair) in pairs.range_mut::<[u8], _>((Bound::Included(from), Bound::Unbounded)) {
            if let Some(value) = &pair.value
                && now.is_none_or(|now| now < pair.end)
            {
                if let Some(end) = end {
                    pair.end = end;
                    pair.is_dirty = true;
                }
                if f(map_key, value).is_break() {
                    break;
                }
            }
        }
    }

    /// As [`super::ValueCache::flush`].
    pub(crate) fn flush(&mut self) {
        let Self { table, writes, state, time_to_live, .. } = self;
        for (_, entry) in table.places_mut(0) {
            if entry.is_dirty {
                writes.write(entry, state.index, time_to_live.is_some());
            }
        }
        writes.send(state.index);
    }

    /// As [`super::ValueCache::stats`].
    #[cfg(test)]
    pub(super) fn stats(&self) -> &CacheStats {
        &self.table.stats
    }

    #[cold]
    fn add(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> u32 {
        let place = self.table.insert(hash, key, namespace);
        if !self.table.is_complete() {
            self.load(&[place]);
        }
        place
    }

    fn set(&mut self, slot: Slot, map_key: &[u8], value: Option<V>) {
        self.table.mark_dirty(slot.0);
        let end = self.time_to_live.map_or(i64::MAX, |ttl| self.clock.now().saturating_add(ttl.duration_ms));
        self.scratch.clear();
        if let Some(value) = &value
            && !self.is_fixed_size
        {
            V::encode(value, &mut self.scratch);
        }
        let map = &mut self.table.entry_mut(slot.0).content;
        let is_in_host = map.pairs.get(map_key).map_or(map.has_unread, |pair| pair.is_in_host);
        if value.is_none() && !is_in_host && !map.has_unread {
            // The host never got it.
            if let Some(pair) = map.pairs.remove(map_key) {
                map.bytes -= pair.bytes;
            }
            return;
        }
        map.insert(map_key, Pair { value, end, is_dirty: true, is_in_host, bytes: 0 }, self.scratch.len());
        self.gathered += PAIR_BYTES + map_key.len() + self.scratch.len();
        if self.table.bytes_max() < self.gathered {
            self.write_early();
        }
    }

    /// Lets the host know what changed, and keeps none of it, before the batch ends: it alone
    /// is more than the cache may take.
    #[cold]
    fn write_early(&mut self) {
        self.flush();
        self.gathered = 0;
        self.table.set_incomplete();
        for place in self.table.touched().to_vec() {
            let entry = self.table.entry_mut(place);
            entry.content = Map { has_unread: entry.is_in_host, ..Map::default() };
            self.table.weigh(place, 0);
        }
    }

    /// Makes sure that a pair is known, and drops it if its time is over. None if it is absent.
    fn known(&mut self, slot: Slot, map_key: &[u8]) -> Option<()> {
        let map = &self.table.entry(slot.0).content;
        if map.has_unread && !map.pairs.contains_key(map_key) {
            self.read_pair(slot, map_key);
        }
        let pair = self.table.entry(slot.0).content.pairs.get(map_key)?;
        pair.value.as_ref()?;
        let end = pair.end;
        if self.time_to_live.is_some() && end <= self.clock.now() {
            self.set(slot, map_key, None);
            return None;
        }
        Some(())
    }

    /// Reads one pair of a large map.
    fn read_pair(&mut self, slot: Slot, map_key: &[u8]) {
        if self.table.bytes_max() < self.gathered {
            self.write_early();
        }
        self.writes.send(self.state.index);
        self.table.touch(slot.0);
        let Self { table, state, reads, time_to_live, .. } = self;
        let entry = table.entry_mut(slot.0);
        entry.key.write(&mut reads.bytes);
        write_counted(map_key, &mut reads.bytes);
        reads.count += 1;
        let answer = reads.send(|count, bytes| host::get_many(state.index, count, bytes)).unwrap_or_default();
        let pair = read_counted(&mut Reader::new(&answer))
            .and_then(|bytes| read_value(state, entry.key.key(), bytes, *time_to_live));
        let is_in_host = pair.is_some();
        let (value, end, bytes) = match pair {
            Some((value, end, bytes)) => (Some(value), end, bytes),
            None => (None, i64::MAX, 0),
        };
        entry.content.insert(map_key, Pair { value, end, is_dirty: false, is_in_host, bytes: 0 }, bytes);
        table.count_lookup();
        table.count_misses(1);
        self.gathered += PAIR_BYTES + map_key.len() + bytes;
    }

    /// Reads maps whole, but those that are large.
    fn load(&mut self, places: &[u32]) {
        self.writes.send(self.state.index);
        let Self { table, state, reads, time_to_live, .. } = self;
        for place in places {
            table.entry(*place).key.write(&mut reads.bytes);
            reads.count += 1;
        }
        table.count_misses(places.len());
        let maps = reads.send(|count, bytes| host::load_maps(state.index, count, bytes, WHOLE_BYTES_MAX));
        let maps = maps.unwrap_or_default();
        let mut maps = Reader::new(&maps);
        for place in places {
            let entry = table.entry_mut(*place);
            match read_counted(&mut maps) {
                None => {
                    entry.content.has_unread = true;
                    entry.is_in_host = true;
                }
                Some(pairs) => {
                    entry.is_in_host = !pairs.is_empty();
                    let Entry { key, content, .. } = entry;
                    let flow = each_pair(state, key.key(), pairs, *time_to_live, |map_key, value, end, bytes| {
                        let pair = Pair { value: Some(value), end, is_dirty: false, is_in_host: true, bytes: 0 };
                        content.insert(map_key, pair, bytes);
                        ControlFlow::Continue(())
                    });
                    if flow.is_break() {
                        // A pair is of another type: the call has failed.
                        return;
                    }
                }
            }
        }
    }

    /// Walks over a large map: what the host does not know is written, then all is read from it.
    fn walk_host(
        &mut self,
        slot: Slot,
        from: &[u8],
        (now, live_on): (Option<i64>, Option<i64>),
        mut f: impl FnMut(&[u8], &V) -> ControlFlow<()>,
    ) {
        let Self { table, writes, state, time_to_live, .. } = self;
        let entry = table.entry_mut(slot.0);
        writes.write(entry, state.index, time_to_live.is_some());
        writes.send(state.index);
        let Entry { key, content, .. } = entry;
        // Known absent pairs are no more than what the host says.
        let mut map = Vec::new();
        key.write(&mut map);
        let mut hand_out = |map_key: &[u8], value: &V, end: i64, writes: &mut Writes| {
            if now.is_some_and(|now| end <= now) {
                return ControlFlow::Continue(());
            }
            if live_on.is_some() {
                writes.put(key, map_key, Some(value), live_on);
            }
            if let (Some(end), Some(known)) = (live_on, content.pairs.get_mut(map_key)) {
                known.end = end;
            }
            f(map_key, value)
        };
        let mut after: Option<Vec<u8>> = None;
        if !from.is_empty() {
            // The walk begins behind a key; the key itself is asked for by name.
            let mut request = map.clone();
            write_counted(from, &mut request);
            let answer = host::get_many(state.index, 1, &request);
            let value = read_counted(&mut Reader::new(&answer))
                .and_then(|bytes| read_value(state, key.key(), bytes, *time_to_live));
            let flow = value.map(|(value, end, _)| hand_out(from, &value, end, writes));
            writes.send(state.index);
            if flow.is_some_and(|flow| flow.is_break()) {
                return;
            }
            after = Some(from.to_owned());
        }
        loop {
            let page = host::scan_map(state.index, &map, after.as_deref(), PAGE_BYTES);
            if page.is_empty() {
                return;
            }
            let flow = each_pair::<V>(state, key.key(), &page, *time_to_live, |map_key, value, end, _| {
                after = Some(map_key.to_owned());
                hand_out(map_key, &value, end, writes)
            });
            writes.send(state.index);
            if flow.is_break() {
                return;
            }
        }
    }

    fn make_room(&mut self) {
        let Self { table, writes, state, time_to_live, .. } = self;
        table.evict(|_, entry| {
            if entry.is_dirty {
                writes.write(entry, state.index, time_to_live.is_some());
            }
        });
        writes.send(state.index);
    }
}

/// A value under a key, the time at which it ends, and its bytes.
fn read_value<V: Owned>(
    state: &StateId,
    key: &[u8],
    bytes: &[u8],
    time_to_live: Option<TimeToLive>,
) -> Option<(V, i64, usize)> {
    let (end, value) = match time_to_live {
        Some(_) => state.read_end::<V>(key, bytes)?,
        None => (i64::MAX, bytes),
    };
    Some((state.decode(key, value)?, end, bytes.len()))
}

/// Reads the pairs of a key as the host lays them out, until one is no pair of this state or `f`
/// breaks off.
fn each_pair<V: Owned>(
    state: &StateId,
    key: &[u8],
    pairs: &[u8],
    time_to_live: Option<TimeToLive>,
    mut f: impl FnMut(&[u8], V, i64, usize) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut pairs = Reader::new(pairs);
    while 0 < pairs.remaining() {
        let (Some(map_key), Some(value)) = (read_counted(&mut pairs), read_counted(&mut pairs)) else {
            return ControlFlow::Break(());
        };
        let Some((value, end, bytes)) = read_value(state, key, value, time_to_live) else {
            return ControlFlow::Break(());
        };
        f(map_key, value, end, bytes)?;
    }
    ControlFlow::Continue(())
}
