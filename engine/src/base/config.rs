//! Configuration: every key the engine knows, and values with where they came from.
//!
//! A [`Configuration`] holds text by key. Values are checked when they are set,
//! so that [`Configuration::get`] cannot fail. Components take what they need
//! into a struct of their own when they are built.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// A type that a value can have.
pub trait ConfigValue: Sized {
    /// What is expected, for messages: "a duration such as \"100 ms\"".
    const EXPECTED: &'static str;

    /// Reads the value, or returns nothing if the text is not one.
    fn parse(text: &str) -> Option<Self>;
}

/// A key with its default and documentation.
pub struct ConfigOption<T> {
    /// Flink's key where Flink has one.
    pub key: &'static str,
    /// Text of the default.
    pub default: &'static str,
    /// Effect, unit and range.
    pub doc: &'static str,
    /// Reads the value.
    pub parse: fn(&str) -> Option<T>,
}

/// A [`ConfigOption`] of any type.
#[derive(Clone, Copy)]
pub struct OptionEntry {
    /// See [`ConfigOption::key`].
    pub key: &'static str,
    /// See [`ConfigOption::default`].
    pub default: &'static str,
    /// See [`ConfigOption::doc`].
    pub doc: &'static str,
    expected: &'static str,
    is_valid: fn(&str) -> bool,
}

/// Where a value came from; a later variant wins over an earlier one.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Origin {
    /// The engine's default.
    Default,
    /// The configuration file.
    File,
    /// Set by the program.
    Program,
    /// An option of the command line, such as `--parallelism`.
    CommandLine,
    /// `-D key=value`.
    Dynamic,
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Default => "default",
            Self::File => "configuration file",
            Self::Program => "program",
            Self::CommandLine => "command line",
            Self::Dynamic => "-D",
        })
    }
}

/// A setting is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// No such key.
    #[error("unknown configuration key \"{key}\"{}", nearest_hint(.nearest.as_deref()))]
    UnknownKey {
        /// As given.
        key: String,
        /// The known key most like it.
        nearest: Option<String>,
    },
    /// The value has another type or is out of range.
    #[error("invalid value \"{value}\" for \"{key}\": expected {expected}")]
    InvalidValue {
        /// The key.
        key: String,
        /// As given.
        value: String,
        /// What would be valid.
        expected: String,
    },
}

fn nearest_hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!(", did you mean \"{nearest}\"?"))
}

/// The candidate most like `name`, if any is alike.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

/// Values by key. Serializes as it is; the receiver trusts the sender's checks.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Configuration {
    values: BTreeMap<String, (String, Origin)>,
}

impl Configuration {
    /// Sets a value, unless one of a stronger origin is there.
    ///
    /// # Errors
    /// Returns an error if the key is unknown or the value is invalid.
    pub fn set(&mut self, key: &str, value: &str, origin: Origin) -> Result<(), ConfigError> {
        let Some(option) = options::ALL.iter().find(|option| option.key == key) else {
            let known = options::ALL.iter().map(|option| option.key);
            let nearest = nearest(key, known).map(str::to_owned);
            return Err(ConfigError::UnknownKey { key: key.to_owned(), nearest });
        };
        if !(option.is_valid)(value) {
            return Err(ConfigError::InvalidValue {
                key: key.to_owned(),
                value: value.to_owned(),
                expected: option.expected.to_owned(),
            });
        }
        match self.values.get(key) {
            Some((_, existing)) if *existing > origin => {}
            _ => {
                self.values.insert(key.to_owned(), (value.to_owned(), origin));
            }
        }
        Ok(())
    }

    /// Takes over all values of `other`, each by the strength of its origin.
    pub fn merge(&mut self, other: &Self) {
        for (key, (value, origin)) in &other.values {
            match self.values.get(key) {
                Some((_, existing)) if existing > origin => {}
                _ => {
                    self.values.insert(key.clone(), (value.clone(), *origin));
                }
            }
        }
    }

    /// The value, or the default.
    pub fn get<T>(&self, option: &ConfigOption<T>) -> T {
        self.values
            .get(option.key)
            .and_then(|(value, _)| (option.parse)(value))
            .or_else(|| (option.parse)(option.default))
            .expect("defaults are valid, as a test checks")
    }

    /// True if the value was set and is not the default.
    pub fn is_set<T>(&self, option: &ConfigOption<T>) -> bool {
        self.values.contains_key(option.key)
    }

    /// The values that were set, with their origins, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, Origin)> {
        self.values.iter().map(|(key, (value, origin))| (key.as_str(), value.as_str(), *origin))
    }
}

/// A whole number of bytes.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct MemorySize(pub u64);

impl ConfigValue for MemorySize {
    const EXPECTED: &'static str = "a size such as \"64 mb\" or \"32KiB\"";

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split_unit(text)?;
        let factor: u64 = match unit {
            "" | "b" | "bytes" => 1,
            "k" | "kb" | "kib" | "kibibytes" => 1 << 10,
            "m" | "mb" | "mib" | "mebibytes" => 1 << 20,
            "g" | "gb" | "gib" | "gibibytes" => 1 << 30,
            "t" | "tb" | "tib" | "tebibytes" => 1 << 40,
            _ => return None,
        };
        number.checked_mul(factor).map(Self)
    }
}

impl ConfigValue for Duration {
    const EXPECTED: &'static str = "a duration such as \"100 ms\" or \"10 s\"";

    fn parse(text: &str) -> Option<Self> {
        let (number, unit) = split_unit(text)?;
        let seconds = |factor: u64| number.checked_mul(factor).map(Self::from_secs);
        match unit {
            "ns" => Some(Self::from_nanos(number)),
            "us" | "µs" => Some(Self::from_micros(number)),
            "" | "ms" => Some(Self::from_millis(number)),
            "s" | "sec" | "second" | "seconds" => seconds(1),
            "m" | "min" | "minute" | "minutes" => seconds(60),
            "h" | "hour" | "hours" => seconds(3600),
            "d" | "day" | "days" => seconds(86400),
            _ => None,
        }
    }
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..digits].parse().ok()?;
    // Units are matched in lower case; there are few enough to list.
    let unit = text[digits..].trim();
    UNITS.iter().find(|known| known.eq_ignore_ascii_case(unit)).map(|unit| (number, *unit))
}

const UNITS: &[&str] = &[
    "",
    "b",
    "bytes",
    "k",
    "kb",
    "kib",
    "kibibytes",
    "m",
    "mb",
    "mib",
    "mebibytes",
    "g",
    "gb",
    "gib",
    "gibibytes",
    "t",
    "tb",
    "tib",
    "tebibytes",
    "ns",
    "us",
    "µs",
    "ms",
    "s",
    "sec",
    "second",
    "seconds",
    "min",
    "minute",
    "minutes",
    "h",
    "hour",
    "hours",
    "d",
    "day",
    "days",
];

impl ConfigValue for bool {
    const EXPECTED: &'static str = "true or false";

    fn parse(text: &str) -> Option<Self> {
        text.trim().to_ascii_lowercase().parse().ok()
    }
}

impl ConfigValue for u32 {
    const EXPECTED: &'static str = "a whole number";

    fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok()
    }
}

impl ConfigValue for u64 {
    const EXPECTED: &'static str = "a whole number";

    fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok()
    }
}

impl ConfigValue for i64 {
    const EXPECTED: &'static str = "a whole number";

    fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok()
    }
}

impl ConfigValue for f64 {
    const EXPECTED: &'static str = "a number";

    fn parse(text: &str) -> Option<Self> {
        text.trim().parse().ok().filter(|number: &Self| number.is_finite())
    }
}

impl ConfigValue for String {
    const EXPECTED: &'static str = "text";

    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// `None` for empty text or "(none)".
impl<T: ConfigValue> ConfigValue for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "" | "(none)" => Some(None),
            text => T::parse(text).map(Some),
        }
    }
}

/// Text of a duration as Flink prints it: the largest unit that divides it.
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 => "0 ms".to_owned(),
        _ if millis % 86_400_000 == 0 => format!("{} d", millis / 86_400_000),
        _ if millis % 3_600_000 == 0 => format!("{} h", millis / 3_600_000),
        _ if millis % 60_000 == 0 => format!("{} min", millis / 60_000),
        _ if millis % 1000 == 0 => format!("{} s", millis / 1000),
        _ => format!("{millis} ms"),
    }
}

/// Every key, by area.
pub mod options {
    use super::{ConfigOption, ConfigValue, MemorySize, OptionEntry};
    use std::time::Duration;

    macro_rules! options {
        ($($name:ident: $type:ty = $key:literal, $default:literal, $doc:literal;)*) => {
            $(
                #[doc = $doc]
                pub static $name: ConfigOption<$type> = ConfigOption {
                    key: $key,
                    default: $default,
                    doc: $doc,
                    parse: <$type as ConfigValue>::parse,
                };
            )*

            /// All keys, in the order of their documentation.
            pub static ALL: &[OptionEntry] = &[$(
                OptionEntry {
                    key: $key,
                    default: $default,
                    doc: $doc,
                    expected: <$type as ConfigValue>::EXPECTED,
                    is_valid: |text| <$type as ConfigValue>::parse(text).is_some(),
                },
            )*];
        };
    }

    options! {
        PARALLELISM: u32 = "parallelism.default", "1", "Parallelism of operators that set none; 1 to 32768.";
        MAX_PARALLELISM: Option<u32> = "pipeline.max-parallelism", "(none)", "Number of key groups of operators that set none; 1 to 32768; unset: derived from the parallelism.";
        JOB_NAME: Option<String> = "pipeline.name", "(none)", "Name of the job; unset: the program's, else the plugin's.";
        OPERATOR_CHAINING: bool = "pipeline.operator-chaining.enabled", "true", "Whether operators are chained into one task where possible.";
        CHAIN_DIFFERENT_MAX_PARALLELISM: bool = "pipeline.operator-chaining.chain-operators-with-different-max-parallelism", "true", "Whether operators with different max parallelism may be chained.";
        AUTO_GENERATE_UIDS: bool = "pipeline.auto-generate-uids", "true", "If false, an operator without a uid is an error.";
        AUTO_WATERMARK_INTERVAL: Duration = "pipeline.auto-watermark-interval", "200 ms", "Time between two watermarks of a source; 0: none.";
        BUFFER_TIMEOUT_ENABLED: bool = "execution.buffer-timeout.enabled", "true", "If false, output buffers are sent only when full.";
        BUFFER_TIMEOUT: Duration = "execution.buffer-timeout.interval", "100 ms", "Time after which a partly filled output buffer is sent; 0: after each batch.";
        ROW_ERROR_POLICY: String = "execution.row-errors.policy", "fail", "What becomes of a row that user code or a format refuses: fail, skip or dead-letter.";
        ROW_ERROR_DEAD_LETTER_DIR: Option<String> = "execution.row-errors.dead-letter.dir", "(none)", "Directory that receives refused rows with their coordinates, for the policy dead-letter.";
        RESTART_STRATEGY: Option<String> = "restart-strategy.type", "(none)", "none, fixed-delay, failure-rate or exponential-delay; unset: none without checkpoints.";
        FIXED_DELAY_ATTEMPTS: u32 = "restart-strategy.fixed-delay.attempts", "1", "Number of restarts before the job fails.";
        FIXED_DELAY_DELAY: Duration = "restart-strategy.fixed-delay.delay", "1 s", "Time between a failure and the restart.";
        FAILURE_RATE_MAX: u32 = "restart-strategy.failure-rate.max-failures-per-interval", "1", "Failures within the interval that are followed by a restart.";
        FAILURE_RATE_INTERVAL: Duration = "restart-strategy.failure-rate.failure-rate-interval", "1 min", "Interval over which failures are counted.";
        FAILURE_RATE_DELAY: Duration = "restart-strategy.failure-rate.delay", "1 s", "Time between a failure and the restart.";
        EXPONENTIAL_INITIAL: Duration = "restart-strategy.exponential-delay.initial-backoff", "1 s", "Delay of the first restart.";
        EXPONENTIAL_MAX: Duration = "restart-strategy.exponential-delay.max-backoff", "1 min", "Longest delay.";
        EXPONENTIAL_MULTIPLIER: f64 = "restart-strategy.exponential-delay.backoff-multiplier", "1.5", "Factor between two delays.";
        EXPONENTIAL_RESET: Duration = "restart-strategy.exponential-delay.reset-backoff-threshold", "1 h", "Time without failure after which the delay starts anew.";
        EXPONENTIAL_JITTER: f64 = "restart-strategy.exponential-delay.jitter-factor", "0.1", "Random share of the delay, 0 to 1.";
        EXPONENTIAL_ATTEMPTS: Option<u32> = "restart-strategy.exponential-delay.attempts-before-reset-backoff", "(none)", "Restarts before the job fails; unset: no limit.";
        FAILOVER_STRATEGY: String = "jobmanager.execution.failover-strategy", "region", "region: restart what a failure touches; full: restart all.";
        ATTEMPTS_HISTORY: u32 = "jobmanager.execution.attempts-history-size", "16", "Former attempts kept for each subtask.";
        HEARTBEAT_INTERVAL: Duration = "heartbeat.interval", "10 s", "Time between two heartbeats.";
        HEARTBEAT_TIMEOUT: Duration = "heartbeat.timeout", "50 s", "Silence after which a peer counts as lost.";
        REGISTRATION_INITIAL_TIMEOUT: Duration = "cluster.registration.initial-timeout", "100 ms", "First wait for the answer to a registration; doubled with each try.";
        REGISTRATION_MAX_TIMEOUT: Duration = "cluster.registration.max-timeout", "30 s", "Longest wait for the answer to a registration.";
        REGISTRATION_ERROR_DELAY: Duration = "cluster.registration.error-delay", "10 s", "Pause after a registration that ended in an error.";
        REGISTRATION_REFUSED_DELAY: Duration = "cluster.registration.refused-registration-delay", "30 s", "Pause after a refused registration.";
        SLOTS: u32 = "taskmanager.numberOfTaskSlots", "1", "Slots of each TaskExecutor. In `engine submit` without a JobManager: as many as the job needs, if unset.";
        TASK_MANAGER_REGISTRATION_TIMEOUT: Duration = "taskmanager.registration.timeout", "5 min", "Time without a ResourceManager after which a TaskExecutor ends.";
        SLOT_TIMEOUT: Duration = "taskmanager.slot.timeout", "10 s", "Time after which a slot that was allocated but not used is freed.";
        SLOT_REQUEST_TIMEOUT: Duration = "slot.request.timeout", "5 min", "Time after which an unfulfilled slot request fails the job.";
        SLOT_IDLE_TIMEOUT: Duration = "slot.idle.timeout", "50 s", "Time after which a job gives back a slot it does not use.";
        RESOURCE_MANAGER_JOB_TIMEOUT: Duration = "resourcemanager.job.timeout", "5 min", "Time after which a job without leader is forgotten.";
        TASK_CANCELLATION_TIMEOUT: Duration = "task.cancellation.timeout", "3 min", "Time after which a task that does not end is reported.";
        SEGMENT_SIZE: MemorySize = "taskmanager.memory.segment-size", "32 kb", "Size of a network buffer: rows are sent at this fill.";
        MAX_BUFFERS_PER_CHANNEL: u32 = "taskmanager.network.memory.max-buffers-per-channel", "10", "Buffers queued for one channel before the producer waits.";
        JOB_STORE_CACHE_SIZE: MemorySize = "jobstore.cache-size", "50 mb", "Memory for finished jobs.";
        JOB_STORE_EXPIRATION: Duration = "jobstore.expiration-time", "1 h", "Time for which finished jobs are shown.";
        EXCEPTION_HISTORY: u32 = "web.exception-history-size", "16", "Failures kept for each job.";
        METRICS_INTERVAL: Duration = "metrics.fetcher.update-interval", "10 s", "Time between two updates of metrics in REST.";
        REST_ADDRESS: String = "rest.bind-address", "127.0.0.1", "Address that REST listens on.";
        REST_PORT: u32 = "rest.port", "8081", "Port that REST listens on; 0: any.";
        JOB_MANAGER_URL: Option<String> = "rest.address", "(none)", "Where a JobManager's REST is reached, for example http://127.0.0.1:8081.";
        UPLOAD_MAX: MemorySize = "rest.server.max-content-length", "100 mb", "Longest body that REST accepts.";
        WEB_SUBMIT: bool = "web.submit.enable", "true", "Whether plugins may be uploaded and run over REST.";
        STORAGE_DIR: Option<String> = "cluster.storage-dir", "(none)", "Directory of the cluster's blobs and job graphs; unset: a temporary one.";
        ALLOW_READ: Option<String> = "sandbox.allow-read", "(none)", "Paths that jobs may read, separated by `:`.";
        ALLOW_WRITE: Option<String> = "sandbox.allow-write", "(none)", "Paths that jobs may write into, separated by `:`.";
        ALLOW_NET: Option<String> = "sandbox.allow-net", "(none)", "Addresses `host:port` that jobs may reach, separated by `,`.";
        PLAN_CPU_TIME: Duration = "sandbox.plan.cpu-time", "5 s", "CPU time that `plan` may take.";
        OPEN_CPU_TIME: Duration = "sandbox.open.cpu-time", "5 s", "CPU time that `open` may take.";
        CALL_CPU_TIME: Duration = "sandbox.call.cpu-time", "1 s", "CPU time that each other call may take.";
        MEMORY_MAX: MemorySize = "sandbox.memory.max", "64 mb", "Memory of one instance.";
        TABLE_MAX: u32 = "sandbox.table.max", "20000", "Elements of all tables of one instance.";
        STACK_MAX: MemorySize = "sandbox.stack.max", "512 kb", "Stack of a plugin's functions.";
        EMIT_BYTES_MAX: MemorySize = "sandbox.emit.bytes-max", "64 mb", "Bytes that one call may emit.";
        EMIT_ROWS_MAX: u64 = "sandbox.emit.rows-max", "1000000", "Rows that one call may emit.";
        ROW_BYTES_MAX: MemorySize = "sandbox.row.bytes-max", "4 mb", "Longest row.";
        LOG_LINE_BYTES: MemorySize = "sandbox.log.line-bytes", "1 kb", "Longest log line; the rest is cut.";
        LOG_BYTES_PER_SECOND: MemorySize = "sandbox.log.bytes-per-second", "64 kb", "Log of one task; what is above is dropped and counted.";
        METRICS_MAX: u32 = "sandbox.metrics.max", "100", "Metrics of one task.";
        PLUGIN_BYTES_MAX: MemorySize = "plugin.bytes-max", "16 mb", "Longest plugin.";
        PLUGIN_COMPILE_CPU_TIME: Duration = "plugin.compile.cpu-time", "30 s", "CPU time that compiling a plugin may take.";
        PLUGIN_CACHE_DIR: Option<String> = "plugin.cache-dir", "(none)", "Directory of compiled plugins; unset: `engine` in the user's cache directory.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid() {
        for option in options::ALL {
            assert!((option.is_valid)(option.default), "{}", option.key);
        }
    }

    #[test]
    fn a_stronger_origin_wins_in_any_order() {
        let mut configuration = Configuration::default();
        for (value, origin) in [("3", Origin::Dynamic), ("2", Origin::File), ("4", Origin::CommandLine)] {
            configuration.set("parallelism.default", value, origin).expect("valid");
        }
        assert_eq!(configuration.get(&options::PARALLELISM), 3);
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = Configuration::default().set("paralelism.default", "1", Origin::File).expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "unknown configuration key \"paralelism.default\", did you mean \"parallelism.default\"?"
        );
    }

    #[test]
    fn durations_and_sizes_take_flinks_units() {
        assert_eq!(Duration::parse("100 ms"), Some(Duration::from_millis(100)));
        assert_eq!(Duration::parse("5 min"), Some(Duration::from_secs(300)));
        assert_eq!(Duration::parse("1.5 s"), None);
        assert_eq!(MemorySize::parse("32 kb"), Some(MemorySize(32 << 10)));
        assert_eq!(MemorySize::parse("64MiB"), Some(MemorySize(64 << 20)));
        assert_eq!(MemorySize::parse("7 lightyears"), None);
    }
}
