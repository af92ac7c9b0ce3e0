//! The hash of a key: MurmurHash3 x86 32-bit, seed 0, of the key's encoded bytes.
//!
//! Fixed for ever, since it decides where state is kept. The host applies
//! Flink's finaliser to it to find the key group.

/// Hash of an encoded key.
#[inline]
pub fn key_hash(key: &[u8]) -> u32 {
    let mut hash = 0_u32;
    let (blocks, tail) = key.as_chunks::<4>();
    for block in blocks {
        hash ^= scramble(u32::from_le_bytes(*block));
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    // Byte by byte: a copy of variable length would be a call on WebAssembly.
    match *tail {
        [a] => hash ^= scramble(u32::from_le_bytes([a, 0, 0, 0])),
        [a, b] => hash ^= scramble(u32::from_le_bytes([a, b, 0, 0])),
        [a, b, c] => hash ^= scramble(u32::from_le_bytes([a, b, c, 0])),
        _ => {}
    }
    // The length enters modulo 2^32, as in the reference implementation.
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2^32 on purpose")]
    let length = key.len() as u32;
    hash ^= length;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[inline]
fn scramble(block: u32) -> u32 {
    block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593)
}

#[cfg(test)]
mod tests {
    use super::key_hash;

    /// Published vectors of MurmurHash3_x86_32 with seed 0.
    #[test]
    fn hashes_equal_the_published_vectors() {
        for (key, expected) in [
            (&b""[..], 0),
            (b"\xff\xff\xff\xff", 0x7629_3b50),
            (b"\x21\x43\x65\x87", 0xf55b_516b),
            (b"\x21\x43\x65", 0x7e4a_8634),
            (b"\x21\x43", 0xa0f7_b07a),
            (b"\x21", 0x7266_1cf4),
            (b"\0\0\0\0", 0x2362_f9de),
            (b"\0", 0x514e_28b7),
        ] {
            assert_eq!(key_hash(key), expected, "{key:?}");
        }
    }
}
