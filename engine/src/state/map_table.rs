//! The ordered maps of one key group of one state, by key and namespace.
//!
//! A clone is a snapshot: it shares everything; the first change afterwards copies
//! the index (not the maps), and a changed map copies its list of chunks.

use std::sync::Arc;

use hashbrown::HashTable;

use super::pair_map::PairMap;

/// What a map costs beside its key, namespace and pairs, about.
const MAP_BYTES: usize = 160;

#[derive(Clone)]
struct Entry {
    hash: u32,
    key_bytes: usize,
    /// Key and namespace.
    scope: Arc<[u8]>,
    map: Arc<PairMap>,
}

impl Entry {
    fn is(&self, hash: u32, key: &[u8], namespace: &[u8]) -> bool {
        self.hash == hash && self.scope.split_at(self.key_bytes) == (key, namespace)
    }

    fn bytes(&self) -> usize {
        MAP_BYTES + self.scope.len() + self.map.bytes()
    }
}

/// See the module.
#[derive(Clone, Default)]
pub(super) struct MapTable {
    index: Arc<HashTable<Entry>>,
    bytes: usize,
    pairs: usize,
    /// Bucket at which the clean-up goes on, behind this map key if there is one.
    clean_up_at: usize,
    clean_up_after: Option<Vec<u8>>,
}

impl MapTable {
    /// Number of pairs of all maps.
    pub(super) fn pairs(&self) -> usize {
        self.pairs
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, hash: u32, key: &[u8], namespace: &[u8]) -> Option<&PairMap> {
        self.index.find(spread(hash), |entry| entry.is(hash, key, namespace)).map(|entry| &*entry.map)
    }

    /// A map with this hash: a look at the index alone.
    pub(super) fn probe(&self, hash: u32) -> Option<&PairMap> {
        let entry = self.index.iter_hash(spread(hash)).find(|entry| entry.hash == hash)?;
        Some(&entry.map)
    }

    /// Changes a map, which exists afterwards if it has pairs.
    fn change(&mut self, hash: u32, key: &[u8], namespace: &[u8], change: impl FnOnce(&mut PairMap)) {
        let index = Arc::make_mut(&mut self.index);
        let entry = index.entry(spread(hash), |entry| entry.is(hash, key, namespace), |entry| spread(entry.hash));
        let mut entry = match entry {
            hashbrown::hash_table::Entry::Occupied(entry) => {
                self.bytes -= entry.get().bytes();
                self.pairs -= entry.get().map.pairs();
                entry
            }
            hashbrown::hash_table::Entry::Vacant(entry) => {
                let scope = [key, namespace].concat().into();
                entry.insert(Entry { hash, key_bytes: key.len(), scope, map: Arc::default() })
            }
        };
        change(Arc::make_mut(&mut entry.get_mut().map));
        if entry.get().map.pairs() == 0 {
            entry.remove();
        } else {
            self.bytes += entry.get().bytes();
            self.pairs += entry.get().map.pairs();
        }
    }

    pub(super) fn put(&mut self, hash: u32, key: &[u8], namespace: &[u8], map_key: &[u8], value: &[u8]) {
        self.change(hash, key, namespace, |map| map.put(map_key, value));
    }

    pub(super) fn remove(&mut self, hash: u32, key: &[u8], namespace: &[u8], map_key: &[u8]) {
        if self.get(hash, key, namespace).is_some_and(|map| map.get(map_key).is_some()) {
            self.change(hash, key, namespace, |map| map.remove(map_key));
        }
    }

    pub(super) fn clear(&mut self, hash: u32, key: &[u8], namespace: &[u8]) {
        if self.get(hash, key, namespace).is_some() {
            self.change(hash, key, namespace, |map| *map = PairMap::default());
        }
    }

    /// Looks at the next `pairs` pairs, in at most as many places of the index, and
    /// deletes those that have ended. While a snapshot holds the index, nothing is done.
    pub(super) fn clean_up(&mut self, pairs: usize, has_ended: impl Fn(&[u8]) -> bool) {
        if Arc::get_mut(&mut self.index).is_none() {
            return;
        }
        let mut left = pairs;
        for _ in 0..pairs.min(self.index.num_buckets()) {
            if left == 0 {
                return;
            }
            if self.index.num_buckets() <= self.clean_up_at {
                self.clean_up_at = 0;
            }
            let Some(Entry { hash, key_bytes, scope, map }) = self.index.get_bucket(self.clean_up_at).cloned() else {
                self.clean_up_at += 1;
                continue;
            };
            let mut last = None;
            let mut ended = Vec::new();
            for (map_key, value) in map.iter_after(self.clean_up_after.as_deref()).take(left) {
                left -= 1;
                last = Some(map_key);
                if has_ended(value) {
                    ended.push(map_key);
                }
            }
            if 0 < left {
                self.clean_up_at += 1;
                last = None;
            }
            self.clean_up_after = last.map(<[u8]>::to_vec);
            let (key, namespace) = scope.split_at(key_bytes);
            ended.into_iter().for_each(|map_key| self.remove(hash, key, namespace, map_key));
        }
    }

    /// Key, namespace and map of all entries.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], &PairMap)> {
        self.index.iter().map(|entry| {
            let (key, namespace) = entry.scope.split_at(entry.key_bytes);
            (key, namespace, &*entry.map)
        })
    }
}

/// Spreads the bits of a hash: the index looks at the highest and the lowest.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
