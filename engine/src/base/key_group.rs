//! Arithmetic from a key's hash to its key group and on to a subtask.
//!
//! Source: Flink's `KeyGroupRangeAssignment` and `MathUtils.murmurHash`. All
//! products fit into 32 bits, since both parallelisms are at most 32,768.

use std::ops::RangeInclusive;

/// The largest parallelism and max parallelism.
pub const MAX_PARALLELISM_LIMIT: u32 = 1 << 15;
/// The least derived max parallelism.
pub const DEFAULT_LOWER_BOUND_MAX_PARALLELISM: u32 = 1 << 7;

/// The key group of a key with the given hash.
#[inline]
pub fn key_group(key_hash: u32, max_parallelism: u32) -> u32 {
    debug_assert!((1..=MAX_PARALLELISM_LIMIT).contains(&max_parallelism));
    let code = scramble(key_hash);
    // Nearly all are powers of two, and a division costs a third of dealing a row.
    if max_parallelism.is_power_of_two() { code & (max_parallelism - 1) } else { code % max_parallelism }
}

/// Murmur3's x86 32-bit hash of the four little-endian bytes, made non-negative.
#[inline]
fn scramble(hash: u32) -> u32 {
    let mut code = hash.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    code = code.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    code ^= 4;
    code = (code ^ (code >> 16)).wrapping_mul(0x85eb_ca6b);
    code = (code ^ (code >> 13)).wrapping_mul(0xc2b2_ae35);
    code ^= code >> 16;
    let signed = code.cast_signed();
    // The absolute value; the least integer, which has none, becomes zero.
    if signed >= 0 { code } else { signed.checked_neg().map_or(0, i32::cast_unsigned) }
}

/// The zero-based subtask that owns a key group.
pub fn subtask_index(key_group: u32, max_parallelism: u32, parallelism: u32) -> u32 {
    debug_assert!(key_group < max_parallelism);
    key_group * parallelism / max_parallelism
}

/// The key groups of a subtask; empty ranges do not occur, since
/// `parallelism <= max_parallelism`.
pub fn key_group_range(subtask_index: u32, max_parallelism: u32, parallelism: u32) -> RangeInclusive<u32> {
    debug_assert!(subtask_index < parallelism);
    debug_assert!(parallelism <= max_parallelism);
    let start = (subtask_index * max_parallelism).div_ceil(parallelism);
    let end = ((subtask_index + 1) * max_parallelism - 1) / parallelism;
    start..=end
}

/// The max parallelism of a vertex for which none was set.
pub fn default_max_parallelism(parallelism: u32) -> u32 {
    (parallelism + parallelism / 2)
        .next_power_of_two()
        .clamp(DEFAULT_LOWER_BOUND_MAX_PARALLELISM, MAX_PARALLELISM_LIMIT)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn vectors() -> Value {
        serde_json::from_str(include_str!("../../tests-data/keygroups.json")).unwrap()
    }

    fn rows<'a>(vectors: &'a Value, name: &str) -> &'a [Value] {
        vectors[name].as_array().unwrap()
    }

    fn number(value: &Value) -> u32 {
        u32::try_from(value.as_u64().unwrap()).unwrap()
    }

    fn range(value: &Value) -> RangeInclusive<u32> {
        number(&value[0])..=number(&value[1])
    }

    fn hash(value: &Value) -> u32 {
        i32::try_from(value.as_i64().unwrap()).unwrap().cast_unsigned()
    }

    #[test]
    fn all_hashes_equal_flinks() {
        let vectors = vectors();
        assert_eq!(rows(&vectors, "murmur").len(), 41);
        for row in rows(&vectors, "murmur") {
            let hash = hash(&row["hash"]);
            assert_eq!(scramble(hash), number(&row["flink_murmur"]), "{row}");
            for max_parallelism in [100, 128, 4096, 32_768] {
                let expected = number(&row[format!("kg_{max_parallelism}")]);
                assert_eq!(key_group(hash, max_parallelism), expected, "{row}");
            }
        }
    }

    #[test]
    fn all_keys_reach_flinks_subtask() {
        let vectors = vectors();
        assert_eq!(rows(&vectors, "keys").len(), 44);
        for row in rows(&vectors, "keys") {
            let max_parallelism = number(&row["max_parallelism"]);
            let group = key_group(hash(&row["hash32"]), max_parallelism);
            assert_eq!(group, number(&row["key_group"]), "{row}");
            for (parallelism, expected) in row["operator_index"].as_object().unwrap() {
                let actual = subtask_index(group, max_parallelism, parallelism.parse().unwrap());
                assert_eq!(actual, number(expected), "{row}");
            }
        }
    }

    #[test]
    fn all_ranges_equal_flinks() {
        let vectors = vectors();
        assert_eq!(rows(&vectors, "ranges").len(), 14);
        for row in rows(&vectors, "ranges") {
            let (max_parallelism, parallelism) = (number(&row["max_parallelism"]), number(&row["parallelism"]));
            let expected: Vec<_> = rows(row, "ranges_inclusive").iter().map(range).collect();
            let actual: Vec<_> =
                (0..parallelism).map(|index| key_group_range(index, max_parallelism, parallelism)).collect();
            assert_eq!(actual, expected, "{row}");
        }
    }

    /// After rescaling, a subtask finds its key groups in those former subtasks whose
    /// ranges overlap with its own.
    #[test]
    fn rescaling_overlaps_as_in_flink() {
        let vectors = vectors();
        assert_eq!(rows(&vectors, "rescale").len(), 8);
        for row in rows(&vectors, "rescale") {
            let max_parallelism = number(&row["max_parallelism"]);
            let (old, new) = (number(&row["old_parallelism"]), number(&row["new_parallelism"]));
            for subtask in rows(row, "new_subtasks") {
                let own = key_group_range(number(&subtask["index"]), max_parallelism, new);
                assert_eq!(own, range(&subtask["range"]), "{row}");
                let overlaps = (0..old).filter_map(|former| {
                    let theirs = key_group_range(former, max_parallelism, old);
                    let overlap = *own.start().max(theirs.start())..=*own.end().min(theirs.end());
                    (!overlap.is_empty()).then_some((former, overlap))
                });
                let expected = rows(subtask, "reads_from_old").iter();
                let expected = expected.map(|read| (number(&read["old_index"]), range(&read["key_groups"])));
                assert_eq!(overlaps.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{row}");
            }
        }
    }

    #[test]
    fn all_default_max_parallelisms_equal_flinks() {
        let vectors = vectors();
        assert_eq!(rows(&vectors, "default_max_parallelism").len(), 34);
        for row in rows(&vectors, "default_max_parallelism") {
            let expected = number(&row["default_max_parallelism"]);
            assert_eq!(default_max_parallelism(number(&row["parallelism"])), expected, "{row}");
        }
    }

    #[test]
    fn ranges_cover_every_key_group_once_and_match_the_subtask() {
        for max_parallelism in [1, 2, 7, 10, 128, 129, 1000] {
            for parallelism in 1..=max_parallelism {
                let mut next = 0;
                for subtask in 0..parallelism {
                    let range = key_group_range(subtask, max_parallelism, parallelism);
                    assert_eq!(*range.start(), next);
                    for group in range.clone() {
                        assert_eq!(subtask_index(group, max_parallelism, parallelism), subtask);
                    }
                    next = range.end() + 1;
                }
                assert_eq!(next, max_parallelism);
            }
        }
    }
}
