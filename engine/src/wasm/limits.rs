//! Limits of one instance: what they are, and the limiter that wasmtime asks
//! before memories and tables grow.

use std::time::Duration;

use crate::base::config::{Configuration, MemorySize, options};

/// Core instances of one plugin: its module, and what the component adds to it.
pub(crate) const INSTANCES_MAX: usize = 16;
/// Memories of one plugin.
pub(crate) const MEMORIES_MAX: usize = 4;
/// Tables of one plugin.
pub(crate) const TABLES_MAX: usize = 8;
/// Resource handles of one instance; the contract has no resources.
pub(crate) const COMPONENT_HANDLES_MAX: usize = 1000;

/// Limits of one instance, from the `sandbox.` options.
#[derive(Clone, Debug)]
pub struct SandboxLimits {
    /// CPU time of `plan`.
    pub plan_cpu_time: Duration,
    /// CPU time of `open`.
    pub open_cpu_time: Duration,
    /// CPU time of each other call.
    pub call_cpu_time: Duration,
    /// Bytes of memory.
    pub memory_bytes_max: usize,
    /// Elements of all tables.
    pub table_elements_max: usize,
    /// Bytes that one call may emit.
    pub emit_bytes_max: usize,
    /// Rows that one call may emit.
    pub emit_rows_max: u64,
    /// Bytes of one row.
    pub row_bytes_max: usize,
    /// Bytes of one log line.
    pub log_line_bytes: usize,
    /// Bytes of log a second.
    pub log_bytes_per_second: u64,
    /// Number of metrics.
    pub metrics_max: usize,
    /// Bytes of keyed state that the guest may keep in its own memory, about.
    pub state_cache_bytes: usize,
    /// Bytes of keyed state and timers of a task.
    pub state_bytes_max: u64,
    /// Bytes of a value of keyed state.
    pub state_value_bytes_max: usize,
    /// Number of timers of a task.
    pub state_timers_max: u64,
}

impl SandboxLimits {
    /// Reads the `sandbox.` options.
    pub fn from_configuration(configuration: &Configuration) -> Self {
        let bytes = |size: MemorySize| usize::try_from(size.0).unwrap_or(usize::MAX);
        Self {
            plan_cpu_time: configuration.get(&options::PLAN_CPU_TIME),
            open_cpu_time: configuration.get(&options::OPEN_CPU_TIME),
            call_cpu_time: configuration.get(&options::CALL_CPU_TIME),
            memory_bytes_max: bytes(configuration.get(&options::MEMORY_MAX)),
            table_elements_max: usize::try_from(configuration.get(&options::TABLE_MAX)).unwrap_or(usize::MAX),
            emit_bytes_max: bytes(configuration.get(&options::EMIT_BYTES_MAX)),
            emit_rows_max: configuration.get(&options::EMIT_ROWS_MAX),
            row_bytes_max: bytes(configuration.get(&options::ROW_BYTES_MAX)),
            log_line_bytes: bytes(configuration.get(&options::LOG_LINE_BYTES)),
            log_bytes_per_second: configuration.get(&options::LOG_BYTES_PER_SECOND).0,
            metrics_max: usize::try_from(configuration.get(&options::METRICS_MAX)).unwrap_or(usize::MAX),
            state_cache_bytes: bytes(configuration.get(&options::STATE_CACHE_BYTES)),
            state_bytes_max: configuration.get(&options::STATE_BYTES_MAX).0,
            state_value_bytes_max: bytes(configuration.get(&options::STATE_VALUE_BYTES_MAX)),
            state_timers_max: configuration.get(&options::STATE_TIMERS_MAX),
        }
    }
}

/// Answers wasmtime's questions and remembers what it refused.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_bytes_max: usize,
    table_elements_max: usize,
    memory_bytes: usize,
    table_elements: usize,
    refused: Option<String>,
}

impl Limiter {
    pub(crate) fn new(limits: &SandboxLimits) -> Self {
        Self {
            memory_bytes_max: limits.memory_bytes_max,
            table_elements_max: limits.table_elements_max,
            memory_bytes: 0,
            table_elements: 0,
            refused: None,
        }
    }

    /// Bytes of all memories of the instance.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// Forgets what was refused: a guest that got on without it is not to blame.
    pub(crate) fn begin_call(&mut self) {
        self.refused = None;
    }

    /// What was refused since the call began.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }
}

impl wasmtime::ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool, wasmtime::Error> {
        let total = self.memory_bytes.saturating_add(desired.saturating_sub(current));
        if total > self.memory_bytes_max || maximum.is_some_and(|maximum| desired > maximum) {
            self.refused = Some(format!(
                "the plugin asked for {total} bytes of memory, the limit is {} (sandbox.memory.max)",
                self.memory_bytes_max
            ));
            return Ok(false);
        }
        self.memory_bytes = total;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> Result<bool, wasmtime::Error> {
        let total = self.table_elements.saturating_add(desired.saturating_sub(current));
        if total > self.table_elements_max || maximum.is_some_and(|maximum| desired > maximum) {
            self.refused = Some(format!(
                "the plugin asked for {total} table elements, the limit is {} (sandbox.table.max)",
                self.table_elements_max
            ));
            return Ok(false);
        }
        self.table_elements = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        INSTANCES_MAX
    }

    fn tables(&self) -> usize {
        TABLES_MAX
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX
    }
}

#[cfg(test)]
mod tests {
    use wasmtime::ResourceLimiter as _;

    use super::*;

    #[test]
    fn defaults_are_those_of_the_options() {
        let limits = SandboxLimits::from_configuration(&Configuration::default());
        assert_eq!(limits.plan_cpu_time, Duration::from_secs(5));
        assert_eq!(limits.call_cpu_time, Duration::from_secs(1));
        assert_eq!(limits.memory_bytes_max, 64 << 20);
        assert_eq!(limits.table_elements_max, 20_000);
        assert_eq!(limits.emit_rows_max, 1_000_000);
        assert_eq!(limits.log_line_bytes, 1024);
        assert_eq!(limits.state_bytes_max, 4 << 30);
        assert_eq!(limits.state_value_bytes_max, 16 << 20);
        assert_eq!(limits.state_timers_max, 50_000_000);
    }

    #[test]
    fn memory_is_limited_over_all_memories_and_the_refusal_is_remembered_for_one_call() {
        let mut limits = SandboxLimits::from_configuration(&Configuration::default());
        limits.memory_bytes_max = 3 << 16;
        let mut limiter = Limiter::new(&limits);
        assert!(limiter.memory_growing(0, 1 << 16, None).unwrap());
        assert!(limiter.memory_growing(0, 2 << 16, None).unwrap());
        assert!(!limiter.memory_growing(1 << 16, 2 << 16, None).unwrap());
        assert_eq!(limiter.memory_bytes(), 3 << 16);
        assert!(limiter.refused().unwrap().contains("sandbox.memory.max"));
        limiter.begin_call();
        assert_eq!(limiter.refused(), None);
    }

    #[test]
    fn tables_are_limited() {
        let limits = SandboxLimits::from_configuration(&Configuration::default());
        let mut limiter = Limiter::new(&limits);
        assert!(limiter.table_growing(0, 19_000, None).unwrap());
        assert!(!limiter.table_growing(19_000, 20_001, None).unwrap());
        assert!(limiter.refused().unwrap().contains("sandbox.table.max"));
    }
}
