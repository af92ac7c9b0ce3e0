//! Finds places by hash, in one look at memory where there is no collision.
//!
//! Caches are larger than what a core keeps near itself, so that each place in memory that
//! a lookup has to see costs more than all that it computes. Hash and place lie side by
//! side here, and collisions in the slots behind: a lookup waits once, and for the entry.
//!
//! Invariants: a slot holds 0 or, in the high half, the hash, and in the low half the place plus
//! one. No slot between that where a hash belongs and the one where it is holds 0. At
//! most three quarters of the slots are in use.

/// Slots of the first table.
const SLOTS_MIN: usize = 8;

#[derive(Debug)]
pub(super) struct PlaceIndex {
    /// A power of two of them.
    slots: Vec<u64>,
    used: usize,
}

impl PlaceIndex {
    pub(super) fn new() -> Self {
        Self { slots: vec![0], used: 0 }
    }

    fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// Where a hash belongs.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        let spread = u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let high = (spread >> 32) as usize;
        high & self.mask()
    }

    /// The first place of this hash that is the one.
    #[inline]
    pub(super) fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut at = self.home(hash);
        loop {
            let (of, place) = halves(self.slots[at]);
            let place = place.checked_sub(1)?;
            if of == hash && is(place) {
                return Some(place);
            }
            at = (at + 1) & self.mask();
        }
    }

    /// Adds a place, which must not be there under this hash.
    pub(super) fn insert(&mut self, hash: u32, place: u32) {
        if self.slots.len() * 3 < (self.used + 1) * 4 {
            let slots = vec![0; (self.slots.len() * 2).max(SLOTS_MIN)];
            for slot in std::mem::replace(&mut self.slots, slots) {
                if slot != 0 {
                    self.put(slot);
                }
            }
        }
        self.put(u64::from(hash) << 32 | (u64::from(place) + 1));
        self.used += 1;
    }

    /// Lays a slot into the first that is free.
    fn put(&mut self, slot: u64) {
        let mut at = self.home(halves(slot).0);
        while self.slots[at] != 0 {
            at = (at + 1) & self.mask();
        }
        self.slots[at] = slot;
    }

    /// Removes a place, if it is there under this hash.
    pub(super) fn remove(&mut self, hash: u32, place: u32) {
        let mut gap = self.home(hash);
        while self.slots[gap] != u64::from(hash) << 32 | (u64::from(place) + 1) {
            if self.slots[gap] == 0 {
                return;
            }
            gap = (gap + 1) & self.mask();
        }
        self.used -= 1;
        // What stands behind moves up, unless it would pass by where it belongs.
        let mut at = gap;
        loop {
            at = (at + 1) & self.mask();
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let distance = at.wrapping_sub(self.home(halves(slot).0)) & self.mask();
            if at.wrapping_sub(gap) & self.mask() <= distance {
                self.slots[gap] = slot;
                gap = at;
            }
        }
        self.slots[gap] = 0;
    }
}

/// Hash and place plus one.
#[inline]
fn halves(slot: u64) -> (u32, u32) {
    let low = slot as u32;
    let high = (slot >> 32) as u32;
    (high, low)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection, prelude::*};

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// Against a set, with hashes so few and near that most of them collide.
        #[test]
        fn places_are_found_until_they_are_removed(
            steps in collection::vec((any::<bool>(), 0_u32..12, 0_u32..200), 0..400),
        ) {
            let hashes = [0, 1, 2, 3, u32::MAX, u32::MAX - 1, 0x8000_0000, 17, 1 << 20, 1 << 21, 5, 6];
            let mut index = PlaceIndex::new();
            let mut model = BTreeSet::new();
            for (is_insert, hash, place) in steps {
                let hash = hashes[hash as usize];
                match (is_insert, model.contains(&(hash, place))) {
                    (true, false) => {
                        index.insert(hash, place);
                        model.insert((hash, place));
                    }
                    (true, true) => {}
                    (false, _) => {
                        index.remove(hash, place);
                        model.remove(&(hash, place));
                    }
                }
                prop_assert_eq!(index.used, model.len());
                prop_assert_eq!(index.slots.iter().filter(|slot| **slot != 0).count(), model.len());
                for hash in hashes {
                    for place in [place, 0, 199] {
                        let found = index.find(hash, |other| other == place);
                        prop_assert_eq!(found.is_some(), model.contains(&(hash, place)));
                    }
                    let any = index.find(hash, |_| true);
                    prop_assert_eq!(any.is_some(), model.range((hash, 0)..=(hash, u32::MAX)).next().is_some());
                }
            }
        }
    }
}
