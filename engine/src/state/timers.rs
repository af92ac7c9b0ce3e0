//! Timers of one time domain, in the order of their timestamps.
//!
//! Timers of one timestamp share a bucket: windows of many keys end together. A
//! bucket of few timers is searched through; one of many has an index, as a
//! timer that is registered twice is one. What was deleted from a bucket of many
//! stays as garbage until it is the larger half.
//!
//! The buckets of about a second share a slot: a snapshot shares the slots, and what
//! changes afterwards copies its slot first.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, Hasher as _},
    sync::Arc,
};

use hashbrown::HashTable;

use super::entries::{self, Reader};

/// Timers up to which a bucket is searched through.
const FEW: usize = 8;
/// What a timer costs beside key and namespace, about.
const TIMER_BYTES: usize = 56;
/// What a slot costs, about: a leaf of its tree has room for eleven buckets, however few there are.
const SLOT_BYTES: usize = 448;
/// Timestamps that differ in these lowest bits only share a slot: 1,024 ms.
const SLOT_BITS: u32 = 10;
/// Marks a timer that was deleted, in the length of its key.
const DELETED: u32 = 1 << 31;

/// A timer's key and namespace with their lengths, as they are fired.
fn timer_at(bytes: &[u8]) -> &[u8] {
    let mut reader = Reader(bytes);
    let whole = "buckets hold whole timers";
    let key = u32::from_le_bytes(reader.array().expect(whole)) & !DELETED;
    let namespace = u32::from_le_bytes(*bytes[4 + key as usize..].first_chunk().expect(whole));
    &bytes[..8 + key as usize + namespace as usize]
}

fn is_deleted(timer: &[u8]) -> bool {
    timer[3] & 0x80 != 0
}

/// Timers in the order of their registration.
#[derive(Clone, Default)]
struct Many {
    bytes: Vec<u8>,
    /// Begin of the first that was not taken.
    from: usize,
    garbage: usize,
    index: HashTable<Place>,
}

/// Where a timer begins. Its hash stands beside it, so that an index of millions grows
/// without looking at each timer again.
#[derive(Clone)]
struct Place {
    hash: u64,
    at: usize,
}

#[derive(Clone)]
enum Bucket {
    Few(Vec<u8>),
    Many(Box<Many>),
}

/// Buckets by timestamp, at least one.
type Slot = Arc<BTreeMap<i64, Bucket>>;

/// See the module.
#[derive(Default)]
pub struct TimerQueue {
    slots: BTreeMap<i64, Slot>,
    len: usize,
    bytes: usize,
    hasher: hashbrown::DefaultHashBuilder,
}

impl TimerQueue {
    /// Number of timers.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no timer.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of all timers with what it takes to find them, about.
    pub fn bytes(&self) -> usize {
        self.bytes + SLOT_BYTES * self.slots.len()
    }

    /// Timestamp of the earliest timer.
    pub fn earliest(&self) -> Option<i64> {
        let (_, first) = self.slots.first_key_value()?;
        first.first_key_value().map(|(timestamp, _)| *timestamp)
    }

    /// Registers a timer. Returns false if it was there.
    pub fn register(&mut self, timestamp: i64, key: &[u8], namespace: &[u8]) -> bool {
        let hash = |timer: &[u8]| hash(&self.hasher, timer);
        let mut timer = Vec::with_capacity(8 + key.len() + namespace.len());
        entries::write(&mut timer, key);
        entries::write(&mut timer, namespace);
        let slot = Arc::make_mut(self.slots.entry(timestamp >> SLOT_BITS).or_default());
        let bucket = slot.entry(timestamp).or_insert_with(|| Bucket::Few(Vec::new()));
        if let Bucket::Few(bytes) = bucket {
            let mut count = 0;
            for other in timers(bytes) {
                if other == timer {
                    return false;
                }
                count += 1;
            }
            if count < FEW {
                bytes.reserve_exact(if bytes.is_empty() { timer.len() } else { 0 });
                bytes.extend_from_slice(&timer);
            } else {
                let mut many = Many::default();
                for other in timers(bytes) {
                    many.register(other, hash);
                }
                many.register(&timer, hash);
                *bucket = Bucket::Many(Box::new(many));
            }
        } else if let Bucket::Many(many) = bucket
            && !many.register(&timer, hash)
        {
            return false;
        }
        self.len += 1;
        self.bytes += TIMER_BYTES + timer.len();
        true
    }

    /// Deletes a timer. Returns false if there was none.
    pub fn delete(&mut self, timestamp: i64, key: &[u8], namespace: &[u8]) -> bool {
        let Some(slot) = self.slots.get_mut(&(timestamp >> SLOT_BITS)) else { return false };
        let slot = Arc::make_mut(slot);
        let Some(bucket) = slot.get_mut(&timestamp) else { return false };
        let mut timer = Vec::with_capacity(8 + key.len() + namespace.len());
        entries::write(&mut timer, key);
        entries::write(&mut timer, namespace);
        let (deleted, is_empty) = match bucket {
            Bucket::Few(bytes) => {
                let mut at = 0;
                for other in timers(bytes) {
                    if other == timer {
                        break;
                    }
                    at += other.len();
                }
                let deleted = at < bytes.len();
                if deleted {
                    bytes.drain(at..at + timer.len());
                }
                (deleted, bytes.is_empty())
            }
            Bucket::Many(many) => {
                let deleted = many.delete(&timer, |timer| hash(&self.hasher, timer));
                (deleted, many.index.is_empty())
            }
        };
        if is_empty {
            slot.remove(&timestamp);
            if slot.is_empty() {
                self.slots.remove(&(timestamp >> SLOT_BITS));
            }
        }
        if deleted {
            self.len -= 1;
            self.bytes -= TIMER_BYTES + timer.len();
        }
        deleted
    }

    /// Takes timers at or below `time`, in the order of their timestamps, up to `count_max`
    /// of them and about `bytes_max` bytes. Appends each to `out`: s64 timestamp, u32
    /// length and bytes of the key, u32 length and bytes of the namespace.
    pub fn take_due(&mut self, time: i64, count_max: u32, bytes_max: usize, out: &mut Vec<u8>) -> u32 {
        let mut count = 0;
        while count < count_max && out.len() < bytes_max {
            if self.earliest().is_none_or(|earliest| time < earliest) {
                break;
            }
            let Some(mut first_slot) = self.slots.first_entry() else { break };
            let slot = Arc::make_mut(first_slot.get_mut());
            let Some(mut first) = slot.first_entry() else { break };
            let timestamp = *first.key();
            let mut take = |timer: &[u8]| {
                out.extend_from_slice(&timestamp.to_le_bytes());
                out.extend_from_slice(timer);
                self.len -= 1;
                self.bytes -= TIMER_BYTES + timer.len();
                count += 1;
                count < count_max && out.len() < bytes_max
            };
            let is_empty = match first.get_mut() {
                Bucket::Few(bytes) => {
                    let mut taken = 0;
                    for timer in timers(bytes) {
                        taken += timer.len();
                        if !take(timer) {
                            break;
                        }
                    }
                    bytes.drain(..taken);
                    bytes.is_empty()
                }
                Bucket::Many(many) => {
                    many.take(|timer| hash(&self.hasher, timer), &mut take);
                    many.index.is_empty()
                }
            };
            if is_empty {
                first.remove();
                if slot.is_empty() {
                    first_slot.remove();
                }
            }
        }
        count
    }

    /// All timers as they are now, which may be read on another thread.
    pub fn snapshot(&self) -> TimerSnapshot {
        TimerSnapshot { slots: self.slots.values().cloned().collect() }
    }
}

/// The timers of a queue at one moment.
pub struct TimerSnapshot {
    slots: Vec<Slot>,
}

impl TimerSnapshot {
    /// Shows all timers in the order of their timestamps: timestamp, key and namespace.
    pub fn visit(&self, mut visit: impl FnMut(i64, &[u8], &[u8])) {
        for (timestamp, bucket) in self.slots.iter().flat_map(|slot| slot.iter()) {
            let bytes = match bucket {
                Bucket::Few(bytes) => bytes.as_slice(),
                Bucket::Many(many) => &many.bytes[many.from..],
            };
            for timer in timers(bytes).filter(|timer| !is_deleted(timer)) {
                let mut parts = entries::elements(timer);
                if let (Some(key), Some(namespace)) = (parts.next(), parts.next()) {
                    visit(*timestamp, key, namespace);
                }
            }
        }
    }
}

/// Timers laid out one behind the other.
fn timers(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let timer = timer_at(bytes);
        bytes = &bytes[timer.len()..];
        Some(timer)
    })
}

fn hash(hasher: &hashbrown::DefaultHashBuilder, timer: &[u8]) -> u64 {
    let mut hasher = hasher.build_hasher();
    hasher.write(timer);
    hasher.finish()
}

impl Many {
    fn register(&mut self, timer: &[u8], hash: impl Fn(&[u8]) -> u64) -> bool {
        let bytes = &self.bytes;
        let hashed = hash(timer);
        if self.index.find(hashed, |place| place.hash == hashed && timer_at(&bytes[place.at..]) == timer).is_some() {
            return false;
        }
        self.index.insert_unique(hashed, Place { hash: hashed, at: bytes.len() }, |place| place.hash);
        self.bytes.extend_from_slice(timer);
        true
    }

    fn delete(&mut self, timer: &[u8], hash: impl Fn(&[u8]) -> u64) -> bool {
        let bytes = &self.bytes;
        let hashed = hash(timer);
        let is_it = |place: &Place| place.hash == hashed && timer_at(&bytes[place.at..]) == timer;
        let Ok(entry) = self.index.find_entry(hashed, is_it) else { return false };
        let (Place { at, .. }, _) = entry.remove();
        self.bytes[at + 3] |= 0x80;
        self.garbage += timer.len();
        if self.bytes.len() - self.from < 2 * self.garbage {
            let mut left = Self::default();
            for timer in timers(&self.bytes[self.from..]).filter(|timer| !is_deleted(timer)) {
                left.register(timer, &hash);
            }
            *self = left;
        }
        true
    }

    /// Lets `take` take timers until it returns false.
    fn take(&mut self, hash: impl Fn(&[u8]) -> u64, mut take: impl FnMut(&[u8]) -> bool) {
        let mut goes_on = true;
        while goes_on && self.from < self.bytes.len() {
            let at = self.from;
            let timer = timer_at(&self.bytes[at..]);
            self.from += timer.len();
            if is_deleted(timer) {
                self.garbage -= timer.len();
                continue;
            }
            if let Ok(entry) = self.index.find_entry(hash(timer), |place| place.at == at) {
                entry.remove();
            }
            goes_on = take(timer);
        }
    }
}
