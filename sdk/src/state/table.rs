//! The table under each cache: entries by key and namespace, with a limit in bytes.
//!
//! Entries lie in a slab; an index finds them by the hash that rows carry. What was
//! used in the current batch is pinned, the rest leaves by second chance when the
//! limit is passed.
//!
//! # Invariants
//! Between batches each entry holds something: what is empty is removed when the next
//! batch begins. A table that is complete holds all there is: what is not in it is nowhere.

use std::{cell::Cell, rc::Rc};

use super::{place_index::PlaceIndex, wire::KeyBytes};

/// Bytes of the index for an entry, about.
const INDEX_BYTES: usize = 16;
/// A table of more bytes is taken not to fit into the cache of a core.
const CORE_CACHE_BYTES: usize = 256 << 10;
/// Bytes of a table for one of what it knows of those that left.
const LEFT_KEYS_SHARE: usize = 16;
const LEFT_KEYS_WORDS_MAX: usize = 1 << 20;
/// No place.
pub(super) const NOWHERE: u32 = u32::MAX;
/// Stamp of a place in the slab that holds no entry.
const VACANT: u32 = u32::MAX;
/// Stamp of an entry whose second chance is used up.
const UNUSED: u32 = 0;

/// Place of an entry; good until the next batch begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Slot(pub(super) u32);

/// What a cache did since it was opened, shared with the metrics of its operator.
#[derive(Debug, Default)]
pub(super) struct CacheStats {
    /// Entries that were asked for.
    pub(super) lookups: Cell<u64>,
    /// Entries that had to be read from the host.
    pub(super) misses: Cell<u64>,
    /// Entries that had to leave.
    pub(super) evictions: Cell<u64>,
    /// Bytes in use, about.
    pub(super) bytes: Cell<usize>,
    /// Entries in the cache.
    pub(super) entries: Cell<usize>,
}

/// Whether the bytes of an entry are those of its content.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Weighed {
    /// Not since it was changed.
    No,
    Yes,
    /// It was, then changed again.
    Stale,
}

pub(super) struct Entry<E> {
    hash: u32,
    /// Number of the last batch that used the entry, [`UNUSED`] or [`VACANT`].
    stamp: u32,
    /// Encoded bytes of key and content beyond the entry itself.
    bytes: u32,
    /// True if the host has something under this key.
    pub(super) is_in_host: bool,
    /// True if the host does not know the content yet.
    pub(super) is_dirty: bool,
    /// True if the entry is in `Table::touched`.
    is_touched: bool,
    /// Whether a changed content was weighed in this batch; for caches that do so before it ends.
    pub(super) weighed: Weighed,
    pub(super) key: KeyBytes,
    pub(super) content: E,
}

impl<E> Entry<E> {
    /// True if the place holds no entry.
    pub(super) fn is_vacant(&self) -> bool {
        self.stamp == VACANT
    }
}

pub(super) struct Table<E> {
    index: PlaceIndex,
    entries: Vec<Entry<E>>,
    vacant: Vec<u32>,
    /// Entries made or changed in this batch.
    touched: Vec<u32>,
    batch: u32,
    /// Next place that eviction looks at.
    hand: usize,
    bytes_max: usize,
    is_complete: bool,
    /// What has left since the table was complete; none: anything may be in the host.
    left: Option<LeftKeys>,
    pub(super) stats: Rc<CacheStats>,
}

/// Which hashes have left a table, with some that have not: a Bloom filter whose bits for a hash are in
/// one word, so that there is one place in memory to wait for.
struct LeftKeys(Vec<u64>);

impl LeftKeys {
    /// For a table of so many bytes.
    fn new(bytes_max: usize) -> Self {
        let words = (bytes_max / LEFT_KEYS_SHARE / size_of::<u64>()).clamp(1, LEFT_KEYS_WORDS_MAX);
        Self(vec![0; words.next_power_of_two()])
    }

    /// The word of a hash, and its bits in there.
    #[inline]
    fn place(&self, hash: u32) -> (usize, u64) {
        let mixed = (u64::from(hash) ^ 0x5bd1_e995).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let word = (mixed >> 32) as usize & (self.0.len() - 1);
        (word, 1 << ((mixed >> 20) & 63) | 1 << ((mixed >> 26) & 63))
    }

    #[inline]
    fn add(&mut self, hash: u32) {
        let (word, bits) = self.place(hash);
        self.0[word] |= bits;
    }

    #[inline]
    fn may_have(&self, hash: u32) -> bool {
        let (word, bits) = self.place(hash);
        self.0[word] & bits == bits
    }
}

/// Mixes the hash of a key with a namespace.
#[inline]
pub(super) fn mix(hash: u32, namespace: &[u8]) -> u32 {
    if namespace.is_empty() {
        return hash;
    }
    let mut mixed = u64::from(hash);
    let (blocks, tail) = namespace.as_chunks::<8>();
    let tail = tail.iter().fold(0, |block, byte| block << 8 | u64::from(*byte));
    for block in blocks.iter().map(|block| u64::from_le_bytes(*block)).chain([tail]) {
        mixed = (mixed ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^= mixed >> 29;
    }
    #[expect(clippy::cast_possible_truncation, reason = "folded to 32 bits on purpose")]
    let folded = (mixed ^ (mixed >> 32)) as u32;
    folded
}

impl<E: Default> Table<E> {
    pub(super) fn new(bytes_max: usize, is_complete: bool, stats: Rc<CacheStats>) -> Self {
        Self {
            index: PlaceIndex::new(),
            entries: Vec::new(),
            vacant: Vec::new(),
            touched: Vec::new(),
            batch: 1,
            hand: 0,
            bytes_max,
            is_complete,
            left: None,
            stats,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// What is not in the table may be in the host from here on.
    pub(super) fn set_incomplete(&mut self) {
        self.is_complete = false;
        self.left = None;
    }

    /// False if the host has nothing under a key of this hash that is not in the table.
    #[inline]
    pub(super) fn may_be_in_host(&self, hash: u32) -> bool {
        !self.is_complete && self.left.as_ref().is_none_or(|left| left.may_have(hash))
    }

    /// An entry was asked for.
    #[inline]
    pub(super) fn count_lookup(&self) {
        self.stats.lookups.update(|lookups| lookups + 1);
    }

    /// Entries are read from the host.
    pub(super) fn count_misses(&self, entries: usize) {
        self.stats.misses.update(|misses| misses + entries as u64);
    }

    #[inline]
    pub(super) fn entry(&self, place: u32) -> &Entry<E> {
        &self.entries[place as usize]
    }

    #[inline]
    pub(super) fn entry_mut(&mut self, place: u32) -> &mut Entry<E> {
        &mut self.entries[place as usize]
    }

    /// Finds an entry and pins it.
    #[inline]
    pub(super) fn find(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> Option<u32> {
        let Self { index, entries, .. } = self;
        let place = index.find(hash, |place| entries[place as usize].key.is(key, namespace))?;
        entries[place as usize].stamp = self.batch;
        Some(place)
    }

    /// The place of an entry of this hash, pinned, if it is there.
    #[inline]
    pub(super) fn pin(&mut self, place: u32, hash: u32) -> Option<u32> {
        let entry = self.entries.get_mut(place as usize).filter(|entry| entry.hash == hash && !entry.is_vacant())?;
        entry.stamp = self.batch;
        Some(place)
    }

    /// The place of an entry that was pinned in this batch, if it has this key.
    #[inline]
    pub(super) fn at(&self, place: u32, key: &[u8], namespace: &[u8]) -> Option<u32> {
        self.entries.get(place as usize).filter(|entry| entry.key.is(key, namespace)).map(|_| place)
    }

    /// A place of this hash. Does not look at the entry, for which it would have to wait if it is
    /// not in a cache of the core.
    #[inline]
    pub(super) fn guess(&self, hash: u32) -> u32 {
        self.index.find(hash, |_| true).unwrap_or(NOWHERE)
    }

    /// True if the table does not fit into the cache of a core.
    #[inline]
    pub(super) fn is_large(&self) -> bool {
        CORE_CACHE_BYTES < self.stats.bytes.get()
    }

    /// Finds and pins an entry of this hash, whatever its key.
    #[inline]
    pub(super) fn find_hash(&mut self, hash: u32) -> Option<u32> {
        let Self { index, entries, .. } = self;
        let place = index.find(hash, |_| true)?;
        entries[place as usize].stamp = self.batch;
        Some(place)
    }

    /// Adds an entry that is not there, empty, and pins it.
    ///
    /// # Panics
    /// Panics if there are 2^32 entries; the memory of a plugin cannot hold them.
    pub(super) fn insert(&mut self, hash: u32, key: &[u8], namespace: &[u8]) -> u32 {
        let key = KeyBytes::new(key, namespace);
        let bytes = u32::try_from(key.heap_bytes()).expect("a key is shorter than 4 GiB");
        let entry = Entry {
            hash,
            stamp: self.batch,
            bytes,
            is_in_host: false,
            is_dirty: false,
            is_touched: true,
            weighed: Weighed::No,
            key,
            content: E::default(),
        };
        let place = match self.vacant.pop() {
            Some(place) => {
                self.entries[place as usize] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("a plugin has room for fewer entries")
            }
        };
        self.index.insert(hash, place);
        self.stats.bytes.update(|total| total + Self::overhead() + bytes as usize);
        self.stats.entries.update(|entries| entries + 1);
        self.touched.push(place);
        place
    }

    /// Bytes of an entry without those of its key and content on the heap.
    pub(super) const fn overhead() -> usize {
        size_of::<Entry<E>>() + INDEX_BYTES
    }

    /// Marks an entry as changed.
    #[inline]
    pub(super) fn mark_dirty(&mut self, place: u32) {
        self.entries[place as usize].is_dirty = true;
        self.touch(place);
    }

    /// Has an entry looked at when the batch ends.
    #[inline]
    pub(super) fn touch(&mut self, place: u32) {
        let entry = &mut self.entries[place as usize];
        if !entry.is_touched {
            entry.is_touched = true;
            self.touched.push(place);
        }
    }

    /// Entries made or changed in this batch.
    pub(super) fn touched(&self) -> &[u32] {
        &self.touched
    }

    /// Says how many bytes the content of an entry takes on the heap.
    pub(super) fn weigh(&mut self, place: u32, content_bytes: usize) {
        let entry = &mut self.entries[place as usize];
        let bytes = u32::try_from(entry.key.heap_bytes() + content_bytes).unwrap_or(u32::MAX);
        self.stats.bytes.update(|total| total - entry.bytes as usize + bytes as usize);
        entry.bytes = bytes;
    }

    /// Ends a batch: nothing is pinned any more. Returns the entries that were made or changed in it.
    pub(super) fn begin_batch(&mut self) -> Vec<u32> {
        self.batch = self.batch.wrapping_add(1);
        if self.batch == UNUSED || self.batch == VACANT {
            self.batch = 1;
        }
        let Self { touched, entries, .. } = self;
        for place in touched.iter() {
            entries[*place as usize].is_touched = false;
        }
        std::mem::take(touched)
    }

    /// Gives the list of [`Table::begin_batch`] back, for its memory.
    pub(super) fn reuse(&mut self, mut touched: Vec<u32>) {
        if self.touched.is_empty() {
            touched.clear();
            self.touched = touched;
        }
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, place: u32) {
        let entry = &mut self.entries[place as usize];
        self.stats.bytes.update(|total| total - (Self::overhead() + entry.bytes as usize));
        self.stats.entries.update(|entries| entries - 1);
        self.index.remove(entry.hash, place);
        entry.stamp = VACANT;
        entry.key = KeyBytes::default();
        entry.content = E::default();
        self.vacant.push(place);
    }

    /// Removes all entries, which nobody knows any more.
    pub(super) fn clear(&mut self) {
        self.stats.bytes.set(0);
        self.stats.entries.set(0);
        *self = Self::new(self.bytes_max, self.is_complete, Rc::clone(&self.stats));
    }

    /// True if entries should leave.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.bytes_max < self.stats.bytes.get()
    }

    /// True if entries should leave before the batch ends.
    pub(super) fn is_far_over(&self) -> bool {
        self.bytes_max.saturating_mul(2) < self.stats.bytes.get()
    }

    /// True if entries should leave before the next batch. An incomplete table can wait for
    /// what the batch's first pass needs, so that all leave by one call.
    pub(super) fn must_shrink(&self) -> bool {
        self.is_over() && (self.is_complete || self.is_far_over())
    }

    /// Lets entries leave until the limit is kept or all that is left is pinned; `leave`
    /// is told of each and its place. Whoever leaves makes the table incomplete.
    pub(super) fn evict(&mut self, mut leave: impl FnMut(usize, &mut Entry<E>)) {
        // Each place is looked at twice: once to take its second chance, once to let it go.
        for _ in 0..2 * self.entries.len() {
            if !self.is_over() {
                break;
            }
            self.hand = if self.hand + 1 < self.entries.len() { self.hand + 1 } else { 0 };
            let entry = &mut self.entries[self.hand];
            if entry.is_vacant() || entry.stamp == self.batch || entry.is_touched {
                continue;
            }
            if entry.stamp != UNUSED {
                entry.stamp = UNUSED;
                continue;
            }
            leave(self.hand, entry);
            self.stats.evictions.update(|evictions| evictions + 1);
            if self.is_complete {
                self.is_complete = false;
                self.left = Some(LeftKeys::new(self.bytes_max));
            }
            if let Some(left) = &mut self.left {
                left.add(entry.hash);
            }
            let place = u32::try_from(self.hand).expect("places are u32");
            self.remove(place);
        }
    }

    /// All entries from a place on, with their places.
    pub(super) fn places_mut(&mut self, from: usize) -> impl Iterator<Item = (usize, &mut Entry<E>)> {
        self.entries.iter_mut().enumerate().skip(from).filter(|(_, entry)| !entry.is_vacant())
    }
}
