//! Deduplication and top-n against models that look at all records at once.

use std::{cmp::Reverse, collections::BTreeMap};

use engine_sdk::{TestHarness, prelude::*};
use proptest::{collection::vec, prelude::*};

/// A record; `id` tells apart those that are otherwise equal.
#[derive(Record, Clone, Debug, PartialEq)]
struct Bid {
    auction: u8,
    price: u8,
    id: u32,
}
