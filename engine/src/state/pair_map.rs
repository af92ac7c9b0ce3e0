//! An ordered map of byte strings, laid out as it crosses to the guest.
//!
//! Pairs (u32 length and bytes of the map key, u32 length and bytes of the value)
//! lie sorted in chunks of a few KiB; a map with few pairs is one chunk. Reading a
//! map whole is a copy of its chunks. A clone shares the chunks, which are copied
//! when they are changed.

use std::sync::Arc;

/// A chunk that would grow above this is split, if it has more than one pair.
const CHUNK_BYTES_MAX: usize = 2 << 10;
/// Bytes of a pair beside map key and value.
const PAIR_HEADER_BYTES: usize = 8;

/// See the module.
#[derive(Clone, Default)]
pub(super) struct PairMap {
    /// None is empty.
    chunks: Vec<Arc<Vec<u8>>>,
    pairs: usize,
    bytes: usize,
}

/// Takes u32 length and bytes from the front.
fn take<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let (length, rest) = bytes.split_first_chunk::<4>().expect("chunks hold whole pairs");
    let (taken, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
    *bytes = rest;
    taken
}

/// Where a map key stands in a chunk, or would stand: begin and end of its pair.
fn locate(chunk: &[u8], map_key: &[u8]) -> Result<(usize, usize), usize> {
    let mut rest = chunk;
    while !rest.is_empty() {
        let begin = chunk.len() - rest.len();
        let key = take(&mut rest);
        take(&mut rest);
        match key.cmp(map_key) {
            std::cmp::Ordering::Less => {}
            std::cmp::Ordering::Equal => return Ok((begin, chunk.len() - rest.len())),
            std::cmp::Ordering::Greater => return Err(begin),
        }
    }
    Err(chunk.len())
}

fn write_pair(out: &mut Vec<u8>, map_key: &[u8], value: &[u8]) {
    for part in [map_key, value] {
        let length = u32::try_from(part.len()).expect("lists of a guest are shorter than 4 GiB");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(part);
    }
}

impl PairMap {
    pub(super) fn pairs(&self) -> usize {
        self.pairs
    }

    /// Bytes of all pairs, as they are laid out.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads a little of the map's ends, so that the processor fetches them.
    pub(super) fn touch(&self) -> u8 {
        let of = |chunk: Option<&Arc<Vec<u8>>>| chunk.and_then(|chunk| chunk.last().copied()).unwrap_or(0);
        of(self.chunks.first()) ^ of(self.chunks.last())
    }

    /// The chunk that has the map key if there is one.
    fn chunk(&self, map_key: &[u8]) -> usize {
        let above = self.chunks.partition_point(|chunk| take(&mut chunk.as_slice()) <= map_key);
        above.saturating_sub(1)
    }

    pub(super) fn get(&self, map_key: &[u8]) -> Option<&[u8]> {
        let chunk = self.chunks.get(self.chunk(map_key))?;
        let (begin, end) = locate(chunk, map_key).ok()?;
        Some(&chunk[begin + PAIR_HEADER_BYTES + map_key.len()..end])
    }

    pub(super) fn put(&mut self, map_key: &[u8], value: &[u8]) {
        let index = self.chunk(map_key);
        let pair_bytes = PAIR_HEADER_BYTES + map_key.len() + value.len();
        if self.chunks.is_empty() {
            self.chunks.push(Arc::default());
        }
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        let at = match locate(chunk, map_key) {
            Ok((begin, end)) if end - begin == pair_bytes => {
                chunk[end - value.len()..end].copy_from_slice(value);
                return;
            }
            Ok((begin, end)) => {
                chunk.drain(begin..end);
                self.pairs -= 1;
                self.bytes -= end - begin;
                begin
            }
            Err(begin) => begin,
        };
        let mut pair = Vec::with_capacity(pair_bytes);
        write_pair(&mut pair, map_key, value);
        self.pairs += 1;
        self.bytes += pair_bytes;
        if at == chunk.len() && !chunk.is_empty() && CHUNK_BYTES_MAX < chunk.len() + pair_bytes {
            // Ascending map keys fill one chunk after the other.
            self.chunks.insert(index + 1, Arc::new(pair));
            return;
        }
        chunk.splice(at..at, pair);
        if CHUNK_BYTES_MAX < chunk.len() {
            self.split(index);
        }
    }

    /// Splits a chunk in the middle.
    fn split(&mut self, index: usize) {
        let chunk = Arc::make_mut(&mut self.chunks[index]);
        let mut rest = chunk.as_slice();
        let mut at = 0;
        while at < chunk.len() / 2 {
            take(&mut rest);
            take(&mut rest);
            at = chunk.len() - rest.len();
        }
        if at < chunk.len() {
            let upper = chunk.split_off(at);
            chunk.shrink_to_fit();
            self.chunks.insert(index + 1, Arc::new(upper));
        }
    }

    pub(super) fn remove(&mut self, map_key: &[u8]) {
        let index = self.chunk(map_key);
        let Some(chunk) = self.chunks.get_mut(index) else { return };
        let Ok((begin, end)) = locate(chunk, map_key) else { return };
        self.pairs -= 1;
        self.bytes -= end - begin;
        if end - begin == chunk.len() {
            self.chunks.remove(index);
            return;
        }
        Arc::make_mut(chunk).drain(begin..end);
        self.merge(index);
        if 0 < index {
            self.merge(index - 1);
        }
    }

    /// Merges a chunk with the next one if they are small.
    fn merge(&mut self, index: usize) {
        let together = self.chunks[index..].iter().take(2).map(|chunk| chunk.len()).sum::<usize>();
        if index + 1 < self.chunks.len() && together < CHUNK_BYTES_MAX / 2 {
            let next = self.chunks.remove(index + 1);
            Arc::make_mut(&mut self.chunks[index]).extend_from_slice(&next);
        }
    }

    /// Map key and value of the pairs above `after`, in order.
    pub(super) fn iter_after(&self, after: Option<&[u8]>) -> impl Iterator<Item = (&[u8], &[u8])> {
        let first = after.map_or(0, |after| self.chunk(after));
        let mut chunks = self.chunks[first.min(self.chunks.len())..].iter();
        let mut rest: &[u8] = &[];
        if let (Some(after), Some(chunk)) = (after, chunks.clone().next()) {
            chunks.next();
            let at = locate(chunk, after).map_or_else(|begin| begin, |(_, end)| end);
            rest = &chunk[at..];
        }
        std::iter::from_fn(move || {
            if rest.is_empty() {
                rest = chunks.next()?;
            }
            Some((take(&mut rest), take(&mut rest)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    type Model = BTreeMap<Vec<u8>, Vec<u8>>;

    fn pairs(map: &PairMap, after: Option<&[u8]>) -> Model {
        let pairs: Vec<_> = map.iter_after(after).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
        assert!(pairs.is_sorted_by(|a, b| a.0 < b.0), "not in order: {pairs:?}");
        pairs.into_iter().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn a_map_equals_a_btree_map_and_its_clones_do_not_change(
            steps in prop::collection::vec((any::<bool>(), 0_u16..60, 0_usize..700), 1..60),
        ) {
            let (mut map, mut model) = (PairMap::default(), Model::new());
            let mut clone = None;
            for (index, (is_put, key, length)) in steps.into_iter().enumerate() {
                // Map keys of several lengths, one the beginning of another.
                let key = if key % 3 == 0 { key.to_be_bytes()[1..].to_vec() } else { key.to_be_bytes().to_vec() };
                if is_put {
                    let value = vec![u8::try_from(index).unwrap(); length];
                    map.put(&key, &value);
                    model.insert(key.clone(), value);
                } else {
                    map.remove(&key);
                    model.remove(&key);
                }
                if index == 20 {
                    clone = Some((map.clone(), model.clone()));
                }
                prop_assert_eq!(map.pairs(), model.len());
                let bytes: usize = model.iter().map(|(key, value)| 8 + key.len() + value.len()).sum();
                prop_assert_eq!(map.bytes(), bytes);
                prop_assert_eq!(map.get(&key), model.get(&key).map(Vec::as_slice));
                let above = pairs(&map, Some(&key));
                let expected: Model = model.iter().filter(|(other, _)| **other > key)
                    .map(|(key, value)| (key.clone(), value.clone())).collect();
                prop_assert_eq!(above, expected);
            }
            prop_assert_eq!(pairs(&map, None), model);
            if let Some((map, model)) = clone {
                prop_assert_eq!(pairs(&map, None), model);
            }
        }
    }

    #[test]
    fn ascending_map_keys_fill_the_chunks_and_single_deletions_do_not_leave_them_empty() {
        let mut map = PairMap::default();
        for key in 0_u32..10_000 {
            map.put(&key.to_be_bytes(), &[0; 20]);
        }
        assert_eq!(map.bytes(), 320_000);
        assert!(map.chunks.len() <= 320_000 / (CHUNK_BYTES_MAX - 32) + 1, "{} chunks", map.chunks.len());
        for key in (0_u32..10_000).filter(|key| key % 50 != 0) {
            map.remove(&key.to_be_bytes());
        }
        assert_eq!(map.pairs(), 200);
        assert!(map.chunks.len() < 40, "{} chunks", map.chunks.len());
    }
}
