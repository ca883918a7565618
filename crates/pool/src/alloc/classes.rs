//! Size classes of blocks.
//!
//! Invariants: a class is a number of 64-byte units. There is a class for each of 1 to 16 units, and above that four
//! classes for each doubling, so at most a fifth of a block is unused. An object larger than half a chunk takes whole
//! chunks.

/// Bytes of a unit.
pub const UNIT: u64 = farindex_fabric::ptr::BLOCK_ALIGN;
/// Number of classes.
pub const CLASSES: usize = 36;

const UNITS: [u16; CLASSES] = {
    let mut units = [0; CLASSES];
    let mut i = 0;
    while i < CLASSES {
        units[i] = if i < 16 {
            i as u16 + 1
        } else {
            // 20, 24, 28, 32, 40, 48, 56, 64, ...
            let doubling = (i as u16 - 16) / 4;
            let step = (i as u16 - 16) % 4 + 1;
            (16 << doubling) + step * (4 << doubling)
        };
        i += 1;
    }
    units
};

/// Units of a class; 0 for a class that does not exist.
pub const fn units(class: usize) -> u64 {
    if class < CLASSES { UNITS[class] as u64 } else { 0 }
}

/// Bytes of a class.
pub const fn bytes(class: usize) -> u64 {
    units(class) * UNIT
}

/// The smallest class whose blocks hold `bytes`; `None` if a chunk holds fewer than two such blocks, so that the object
/// takes whole chunks.
pub fn of(bytes: u64, chunk_size: u64) -> Option<usize> {
    let wanted = bytes.div_ceil(UNIT).max(1);
    let class =
        if wanted <= 16 { wanted as usize - 1 } else { UNITS.partition_point(|units| u64::from(*units) < wanted) };
    (class < CLASSES && self::bytes(class) * 2 <= chunk_size).then_some(class)
}

/// Blocks of a class in one chunk.
pub fn blocks(class: usize, chunk_size: u64) -> u64 {
    chunk_size.checked_div(bytes(class)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_class_is_the_smallest_that_fits() {
        assert_eq!(units(CLASSES - 1), 512);
        for wanted in 1..=512 * UNIT {
            let class = of(wanted, 64 << 10).expect("fits half a chunk");
            assert!(bytes(class) >= wanted);
            assert!(class == 0 || bytes(class - 1) < wanted, "{wanted} in class {class}");
        }
        assert_eq!(of(512 * UNIT + 1, 64 << 10), None);
        assert_eq!(of(8 * 1024 + 1, 16 << 10), None);
        assert_eq!(of(0, 16 << 10), Some(0));
    }
}
