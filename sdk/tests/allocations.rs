//! Text is read, keyed, counted and summed without an allocation for each record.
//!
//! One row of many words goes through the job; the harness allocates for each
//! block of rows that it passes on, so what is checked is that allocations do
//! not grow with the words.
#![expect(unsafe_code, reason = "a global allocator that counts")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use engine_sdk::{TestHarness, prelude::*};

/// Words in the measured row.
const WORDS: usize = 100_000;
/// Allocations allowed: a handful for each of the blocks of 32 KiB.
const ALLOCATIONS_MAX: u64 = 2_000;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls are passed on to the system's allocator as they are.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn words(lines: &DataStream<str>) -> DataStream<str> {
    lines.flat_map(|line, out: &mut Collector<str>| line.split(' ').for_each(|word| out.collect(word)))
}

/// Allocations while a row of words goes through the job, after one like it.
fn allocations(mut harness: TestHarness) -> u64 {
    let line = ["stream", "engine", "a", "somewhat-longer-word-than-others"].map(str::to_owned);
    let line = line.iter().cycle().take(WORDS).cloned().collect::<Vec<_>>().join(" ");
    harness.push_with_timestamp::<str>(&line, 1).expect("the job takes lines");
    let before = ALLOCATIONS.get();
    harness.push_with_timestamp::<str>(&line, 1).expect("the job takes lines");
    ALLOCATIONS.get() - before
}

#[track_caller]
fn check(harness: engine_sdk::Result<TestHarness>) {
    let allocations = allocations(harness.expect("the job can be declared"));
    assert!(0 < allocations, "the allocator counts");
    assert!(allocations < ALLOCATIONS_MAX, "{allocations} allocations for {WORDS} words");
}

#[test]
fn counting_text_does_not_allocate_for_each_word() {
    check(TestHarness::of_stream(|lines: DataStream<str>| {
        words(&lines).key_by_ref(|word| word).count().filter(|(_, count)| *count == 0)
    }));
    check(TestHarness::of_stream(|lines: DataStream<str>| {
        words(&lines).key_by_ref(|word| word).window(GlobalWindows::end_of_stream()).count()
    }));
}

#[test]
fn summing_by_text_does_not_allocate_for_each_word() {
    check(TestHarness::of_stream(|lines: DataStream<str>| {
        let sums = words(&lines).key_by_ref(|word| word).sum(|word| word.len() as u64);
        sums.flat_map(|(word, sum), out: &mut Collector<str>| {
            if sum == 0 {
                out.csv((word, sum));
            }
        })
    }));
}

#[test]
fn writing_text_does_not_allocate_for_each_word() {
    check(TestHarness::of_stream(|lines: DataStream<str>| {
        words(&lines)
            .flat_map(|word, out: &mut Collector<str>| out.csv((word, word.len() as u64)))
            .flat_map(|row, out: &mut Collector<str>| out.write(format_args!("<{row}>")))
            .filter(|row| row.is_empty())
    }));
}

#[test]
fn keeping_the_best_does_not_allocate_for_each_word() {
    check(TestHarness::of_stream(|lines: DataStream<str>| {
        words(&lines).key_by_ref(|word| word).deduplicate(Keep::First).updates()
    }));
    check(TestHarness::of_stream(|lines: DataStream<str>| {
        let words = words(&lines);
        words
            .key_by_ref(|word| word)
            .top_n(3, |word| word.len())
            .updates(|word, _, out: &mut Collector<str>| out.collect(word))
    }));
}

#[test]
fn joining_does_not_allocate_for_each_word() {
    check(TestHarness::of_stream(|lines: DataStream<str>| {
        let words = words(&lines);
        let known = words.key_by_ref(|word| word).deduplicate(Keep::First).updates();
        let joined = words.key_by_ref(|word| word).regular_join(&known.key_by_ref(|word| word));
        joined.process(|word, known, out: &mut Collector<str>| {
            if word != known {
                out.collect(word);
            }
        })
    }));
    check(TestHarness::of_stream(|lines: DataStream<str>| {
        let words = words(&lines);
        let known = words.key_by_ref(|word| word).deduplicate(Keep::First).updates();
        let joined = words.key_by_ref(|word| word).interval_join(&known.key_by_ref(|word| word)).between(-5, 5);
        joined.process(|word, known, _, out: &mut Collector<str>| {
            if word != known {
                out.collect(word);
            }
        })
    }));
}

#[test]
fn owned_words_do_allocate() {
    let owned = TestHarness::of_stream(|lines: DataStream<str>| words(&lines).map(str::to_owned).filter(|_| false));
    assert!(WORDS as u64 <= allocations(owned.unwrap()));
}
