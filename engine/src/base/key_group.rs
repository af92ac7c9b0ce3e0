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
    use super::*;

    /// Values of Flink: hash, key group of 128, of 4096, of 32768, subtask of 3 at 128.
    #[test]
    fn key_groups_equal_flinks() {
        for (hash, of_128, of_4096, of_32768, of_3) in [
            (0_i32, 94, 2526, 31198, 2),
            (1, 86, 4054, 16342, 2),
            (4, 7, 263, 16647, 0),
            (42, 29, 3613, 28189, 0),
            (-1, 80, 2896, 15184, 1),
            (i32::MAX, 62, 3262, 19646, 1),
            (i32::MIN, 108, 2156, 10348, 2),
            (-1_035_494_534, 0, 0, 0, 0),
            (-2_089_875_627, 0, 0, 0, 0),
            (-714_456_186, 1, 1, 1, 0),
        ] {
            let hash = hash.cast_unsigned();
            assert_eq!(key_group(hash, 128), of_128, "{hash}");
            assert_eq!(key_group(hash, 4096), of_4096, "{hash}");
            assert_eq!(key_group(hash, 32768), of_32768, "{hash}");
            assert_eq!(subtask_index(of_128, 128, 3), of_3, "{hash}");
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

    #[test]
    fn default_max_parallelism_equals_flinks() {
        for (parallelism, expected) in [
            (1, 128),
            (85, 128),
            (86, 256),
            (170, 256),
            (171, 256),
            (172, 512),
            (683, 1024),
            (5461, 8192),
            (32768, 32768),
        ] {
            assert_eq!(default_max_parallelism(parallelism), expected, "{parallelism}");
        }
    }
}
