//! Measures the CPU time of the calling thread, which other processes disturb
//! less than they do the time that passes.

use criterion::{
    Throughput,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use rustix::time::{ClockId, clock_gettime};

/// A criterion measurement; values are nanoseconds.
pub struct ThreadCpuTime;

fn thread_cpu_nanos() -> i128 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

impl Measurement for ThreadCpuTime {
    type Intermediate = i128;
    type Value = i128;

    fn start(&self) -> i128 {
        thread_cpu_nanos()
    }

    fn end(&self, start: i128) -> i128 {
        thread_cpu_nanos() - start
    }

    fn add(&self, first: &i128, second: &i128) -> i128 {
        first + second
    }

    fn zero(&self) -> i128 {
        0
    }

    #[expect(clippy::cast_precision_loss, reason = "a bench runs for less than 2^53 ns")]
    fn to_f64(&self, value: &i128) -> f64 {
        *value as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        &NanosPerRow
    }
}

/// Shows throughput as nanoseconds for each row, and the rest as criterion does.
struct NanosPerRow;

impl ValueFormatter for NanosPerRow {
    fn scale_values(&self, typical: f64, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_values(typical, values)
    }

    fn scale_throughputs(&self, typical: f64, throughput: &Throughput, values: &mut [f64]) -> &'static str {
        match throughput {
            Throughput::Elements(rows) => {
                #[expect(clippy::cast_precision_loss, reason = "batches have fewer than 2^53 rows")]
                values.iter_mut().for_each(|value| *value /= *rows as f64);
                "ns/row"
            }
            _ => WallTime.formatter().scale_throughputs(typical, throughput, values),
        }
    }

    fn scale_for_machines(&self, values: &mut [f64]) -> &'static str {
        WallTime.formatter().scale_for_machines(values)
    }
}
