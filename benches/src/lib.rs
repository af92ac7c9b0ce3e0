//! Input for benches and tests: Nexmark events as JSON lines, and lines of words.

use std::{
    io::{self, Write},
    ops::Range,
};

use nexmark::{EventGenerator, config::NexmarkConfig};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// Event time of the first event: the first of January 2026, in milliseconds
/// since the Unix epoch.
pub const BASE_TIME: u64 = 1_767_225_600_000;

/// Writes the events `range` of the generator's sequence, one JSON object a line.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_nexmark(range: Range<u64>, output: impl Write) -> io::Result<()> {
    write_every_nexmark(range, 1, output)
}

/// Writes the events of `range` that are a multiple of `step` (at least 1) after its first,
/// one JSON object a line.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_every_nexmark(range: Range<u64>, step: u64, mut output: impl Write) -> io::Result<()> {
    let config = NexmarkConfig {
        base_time: BASE_TIME,
        first_rate: 1000,
        next_rate: 1000,
        out_of_order_group_size: 1,
        ..NexmarkConfig::default()
    };
    let generator = EventGenerator::new(config).with_offset(range.start).with_step(step);
    let count = usize::try_from(range.end.saturating_sub(range.start).div_ceil(step)).unwrap_or(usize::MAX);
    for event in generator.take(count) {
        serde_json::to_writer(&mut output, &event)?;
        output.write_all(b"\n")?;
    }
    output.flush()
}

/// Writes lines of ten words each; a few of the 50,000 words are frequent, most
/// are rare.
///
/// # Errors
/// Returns an error if writing fails.
pub fn write_words(lines: u64, seed: u64, mut output: impl Write) -> io::Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..lines {
        for index in 0..10 {
            if index > 0 {
                output.write_all(b" ")?;
            }
            // The cube of a uniform number favours small ones, as language does.
            let uniform: f64 = random.random();
            let word = (uniform.powi(3) * 50_000.0).floor();
            write!(output, "word{word}")?;
        }
        output.write_all(b"\n")?;
    }
    output.flush()
}
