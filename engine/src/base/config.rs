//! Configuration: every key the engine knows, and values with where they came from.
//!
//! A [`Configuration`] holds text by key. Values are checked when they are set,
//! so that [`Configuration::get`] cannot fail. Components take what they need
//! into a struct of their own when they are built.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::option_scope::Scope;

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
    constraint: Constraint,
    is_valid: fn(&str) -> bool,
}

/// What a value must satisfy beyond its type.
#[derive(Clone, Copy, Debug)]
pub enum Constraint {
    /// Nothing more.
    Any,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A number between the two, both inclusive.
    Between(f64, f64),
    /// A size between the two in bytes, both inclusive.
    Sizes(u64, u64),
    /// A duration between the two in milliseconds, both inclusive.
    Durations(u64, u64),
}

impl Constraint {
    fn admits(self, text: &str) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(words) => words.contains(&text),
            Self::Between(least, greatest) => match text.trim().parse::<f64>() {
                Ok(number) => least <= number && number <= greatest,
                // Words that stand for "unset", which the type has admitted.
                Err(_) => true,
            },
            Self::Sizes(least, greatest) => {
                MemorySize::parse(text).is_none_or(|size| (least..=greatest).contains(&size.0))
            }
            Self::Durations(least, greatest) => Duration::parse(text).is_none_or(|duration| {
                Duration::from_millis(least) <= duration && duration <= Duration::from_millis(greatest)
            }),
        }
    }
}

impl OptionEntry {
    /// What a valid value is, for messages and the reference.
    pub fn expected(&self) -> String {
        match self.constraint {
            Constraint::Any => self.expected.to_owned(),
            Constraint::OneOf(words) => {
                let words: Vec<&str> = words.iter().copied().filter(|word| *word != "(none)").collect();
                format!("one of {}", words.join(", "))
            }
            Constraint::Between(least, greatest) => format!("{} from {least} to {greatest}", self.expected),
            Constraint::Sizes(least, greatest) => {
                format!("{}, from {} to {}", self.expected, format_size(least), format_size(greatest))
            }
            Constraint::Durations(least, greatest) => {
                let text = |millis| format_duration(Duration::from_millis(millis));
                format!("{}, from {} to {}", self.expected, text(least), text(greatest))
            }
        }
    }

    fn admits(&self, text: &str) -> bool {
        (self.is_valid)(text) && self.constraint.admits(text)
    }
}

/// Where a value came from; a later variant wins over an earlier one.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Origin {
    /// The engine's default.
    Default,
    /// The configuration file.
    File,
    /// An environment variable.
    Environment,
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
            Self::Environment => "environment",
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
        check(key, value)?;
        match self.values.get(key) {
            Some((_, existing)) if *existing > origin => {}
            _ => {
                self.values.insert(key.to_owned(), (value.to_owned(), origin));
            }
        }
        Ok(())
    }

    /// Reads a TOML file; keys may be dotted, quoted or nested in tables.
    ///
    /// # Errors
    /// Returns an error with file and line if the file cannot be read, is not
    /// TOML, or has an unknown key or an invalid value.
    pub fn load_file(path: &Path) -> Result<Self, ConfigFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigFileError::Unreadable { path: path.to_owned(), source })?;
        Self::parse_file(&text, path)
    }

    /// Reads the text of a configuration file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Configuration::load_file`].
    pub fn parse_file(text: &str, path: &Path) -> Result<Self, ConfigFileError> {
        let line_at =
            |offset: usize| 1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count();
        let table = toml::de::DeTable::parse(text).map_err(|error| ConfigFileError::Syntax {
            path: path.to_owned(),
            line: line_at(error.span().map_or(0, |span| span.start)),
            message: error.message().to_owned(),
        })?;
        let mut configuration = Self::default();
        let mut settings = Vec::new();
        flatten("", table.get_ref(), &mut settings);
        for (key, value, offset) in settings {
            let invalid = |reason| ConfigFileError::Setting { path: path.to_owned(), line: line_at(offset), reason };
            let value = value.map_err(|found| {
                let expected = entry(&key).map_or_else(|| "text or a number".to_owned(), OptionEntry::expected);
                invalid(ConfigError::InvalidValue { key: key.clone(), value: found.to_owned(), expected })
            })?;
            configuration.set(&key, &value, Origin::File).map_err(invalid)?;
        }
        Ok(configuration)
    }

    /// Checks all keys and values again, for a configuration that came from elsewhere.
    ///
    /// # Errors
    /// Returns the first key or value that is refused.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.values.iter().try_for_each(|(key, (value, _))| check(key, value))
    }

    /// Forgets the values whose keys satisfy `which`.
    pub fn remove(&mut self, which: impl Fn(&str) -> bool) {
        self.values.retain(|key, _| !which(key));
    }

    /// Value and origin of every known key, defaults included, in the order of [`options::ALL`].
    pub fn effective(&self) -> impl Iterator<Item = (&'static str, &str, Origin)> {
        options::ALL.iter().map(|option| match self.values.get(option.key) {
            Some((value, origin)) => (option.key, value.as_str(), *origin),
            None => (option.key, option.default, Origin::Default),
        })
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

fn entry(key: &str) -> Option<&'static OptionEntry> {
    options::ALL.iter().find(|option| option.key == key)
}

fn check(key: &str, value: &str) -> Result<(), ConfigError> {
    let Some(option) = entry(key) else {
        let known = options::ALL.iter().map(|option| option.key);
        let nearest = nearest(key, known).map(str::to_owned);
        return Err(ConfigError::UnknownKey { key: key.to_owned(), nearest });
    };
    if option.admits(value) {
        return Ok(());
    }
    Err(ConfigError::InvalidValue { key: key.to_owned(), value: value.to_owned(), expected: option.expected() })
}

/// Appends key, text (or the kind of value that is none) and byte offset of every leaf of a table.
fn flatten(
    prefix: &str,
    table: &toml::de::DeTable<'_>,
    settings: &mut Vec<(String, Result<String, &'static str>, usize)>,
) {
    use toml::de::DeValue;
    for (name, value) in table {
        let key = match prefix {
            "" => name.get_ref().to_string(),
            prefix => format!("{prefix}.{}", name.get_ref()),
        };
        let text = match value.get_ref() {
            DeValue::Table(nested) => {
                flatten(&key, nested, settings);
                continue;
            }
            DeValue::String(text) => Ok(text.to_string()),
            DeValue::Boolean(flag) => Ok(flag.to_string()),
            DeValue::Float(number) => Ok(number.to_string()),
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
                .map(|n| n.to_string())
                .map_err(|_| "a large number"),
            DeValue::Datetime(_) => Err("a date"),
            DeValue::Array(_) => Err("a list"),
        };
        settings.push((key, text, name.span().start));
    }
}

/// A configuration file is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// The file cannot be read.
    #[error("could not read the configuration file {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}, line {line}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// One-based.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// A key or value is refused.
    #[error("{}, line {line}: {reason}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// One-based.
        line: usize,
        /// Why; told by `Display`, so that the line stays one.
        reason: ConfigError,
    },
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

/// A duration whose bare number counts seconds, as in Flink's `jobstore.expiration-time`.
fn parse_seconds(text: &str) -> Option<Duration> {
    text.trim().parse().map(Duration::from_secs).ok().or_else(|| Duration::parse(text))
}

/// A number for which Flink also writes "infinite".
fn parse_unless_infinite(text: &str) -> Option<Option<u32>> {
    if text.trim().eq_ignore_ascii_case("infinite") { Some(None) } else { Option::parse(text) }
}

/// A number for which Flink also writes -1.
fn parse_unless_negative(text: &str) -> Option<Option<u32>> {
    if text.trim() == "-1" { Some(None) } else { Option::parse(text) }
}

/// All keys as a table in Markdown.
pub fn reference() -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut text =
        "# Configuration\n\nMade from the table of options by a test; keys are Flink's where Flink has them.\n\n\
         \"Set by\" is the weakest party that may set a key; those after it may, too. `program`: the plugin, as with \
         `configure` of the SDK. `submitter`: who submits the job, with `-D key=value`, an option of the command line \
         or the configuration file. `owner`: who runs the process; a job that is submitted over REST cannot change \
         these, and what it says of them is ignored. In `engine submit` without a JobManager the submitter is the \
         owner.\n\n| key | default | value | set by | effect |\n|---|---|---|---|---|\n"
            .to_owned();
    for option in options::ALL {
        let (expected, doc) = (cell(&option.expected()), cell(option.doc));
        let scope = Scope::of(option.key).name();
        text.push_str(&format!("| `{}` | {} | {expected} | {scope} | {doc} |\n", option.key, option.default));
    }
    text
}

/// Text of a size: the largest unit that divides it.
fn format_size(bytes: u64) -> String {
    let units = [("tb", 40), ("gb", 30), ("mb", 20), ("kb", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} b"), |(unit, shift)| format!("{} {unit}", bytes >> shift))
}

/// Text of a duration as Flink prints it: the largest unit that divides it.
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        0 => "0 ms".to_owned(),
        _ if millis.is_multiple_of(86_400_000) => format!("{} d", millis / 86_400_000),
        _ if millis.is_multiple_of(3_600_000) => format!("{} h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) => format!("{} min", millis / 60_000),
        _ if millis.is_multiple_of(1000) => format!("{} s", millis / 1000),
        _ => format!("{millis} ms"),
    }
}

/// Every key, by area.
pub mod options {
    use super::{ConfigOption, ConfigValue, Constraint, MemorySize, OptionEntry};
    use std::time::Duration;

    // A name, its type, where needed how it is read, what it must satisfy, key, default, documentation.
    macro_rules! options {
        ($($name:ident: $type:ty $(as $parse:path)? $(where $constraint:ident)? = $key:literal, $default:literal, $doc:literal;)*) => {
            $(
                #[doc = $doc]
                pub static $name: ConfigOption<$type> = ConfigOption {
                    key: $key,
                    default: $default,
                    doc: $doc,
                    parse: options!(@parse $type $(, $parse)?),
                };
            )*

            /// All keys, in the order of their documentation.
            pub static ALL: &[OptionEntry] = &[$(
                OptionEntry {
                    key: $key,
                    default: $default,
                    doc: $doc,
                    expected: <$type as ConfigValue>::EXPECTED,
                    constraint: options!(@constraint $($constraint)?),
                    is_valid: |text| ($name.parse)(text).is_some(),
                },
            )*];
        };
        (@parse $type:ty) => { <$type as ConfigValue>::parse };
        (@parse $type:ty, $parse:path) => { $parse };
        (@constraint) => { Constraint::Any };
        (@constraint $constraint:ident) => { $constraint };
    }

    const PARALLELISMS: Constraint = Constraint::Between(1.0, 32768.0);
    /// -1 is Flink's "unset".
    const MAX_PARALLELISMS: Constraint = Constraint::Between(-1.0, 32768.0);
    /// A year at most, as pauses.
    const CHECKPOINT_TIMES: Constraint = Constraint::Durations(10, 31_536_000_000);
    const CHECKPOINTING_MODES: Constraint = Constraint::OneOf(&["EXACTLY_ONCE", "AT_LEAST_ONCE"]);
    const CHECKPOINT_RETENTIONS: Constraint =
        Constraint::OneOf(&["NO_EXTERNALIZED_CHECKPOINTS", "DELETE_ON_CANCELLATION", "RETAIN_ON_CANCELLATION"]);
    const STATE_BACKENDS: Constraint = Constraint::OneOf(&["hashmap", "disk"]);
    const ROW_ERROR_POLICIES: Constraint = Constraint::OneOf(&["fail", "skip", "dead-letter"]);
    const RESTART_STRATEGIES: Constraint =
        Constraint::OneOf(&["(none)", "none", "off", "disable", "fixed-delay", "failure-rate", "exponential-delay"]);
    const FAILOVER_STRATEGIES: Constraint = Constraint::OneOf(&["region", "full"]);
    const SLOTS_PER_TASK_EXECUTOR: Constraint = Constraint::Between(1.0, 32768.0);
    const PORTS: Constraint = Constraint::Between(0.0, 65535.0);
    const SHARES: Constraint = Constraint::Between(0.0, 1.0);
    const BACKOFF_MULTIPLIERS: Constraint = Constraint::Between(1.0, 1000.0);
    const UP_TO_1000: Constraint = Constraint::Between(0.0, 1000.0);
    const FROM_1_TO_1000: Constraint = Constraint::Between(1.0, 1000.0);
    /// Each task allocates some of them at once, and each channel a place for each of its buffers.
    const SEGMENT_SIZES: Constraint = Constraint::Sizes(64, 16 << 20);
    /// As in Flink: the metadata goes through messages.
    const INLINE_THRESHOLDS: Constraint = Constraint::Sizes(0, 1 << 20);
    /// Shorter ones keep a core busy.
    const PERIODS: Constraint = Constraint::Durations(10, 86_400_000);

    options! {
        PARALLELISM: u32 where PARALLELISMS = "parallelism.default", "1", "Parallelism of operators that set none; 1 to 32768.";
        MAX_PARALLELISM: Option<u32> as super::parse_unless_negative where MAX_PARALLELISMS = "pipeline.max-parallelism", "(none)", "Number of key groups of operators that set none; 1 to 32768; unset: derived from the parallelism.";
        JOB_NAME: Option<String> = "pipeline.name", "(none)", "Name of the job; unset: the program's, else the plugin's.";
        OPERATOR_CHAINING: bool = "pipeline.operator-chaining.enabled", "true", "Whether operators are chained into one task where possible.";
        CHAIN_DIFFERENT_MAX_PARALLELISM: bool = "pipeline.operator-chaining.chain-operators-with-different-max-parallelism", "true", "Whether operators with different max parallelism may be chained.";
        AUTO_GENERATE_UIDS: bool = "pipeline.auto-generate-uids", "true", "If false, an operator without a uid is an error.";
        AUTO_WATERMARK_INTERVAL: Duration = "pipeline.auto-watermark-interval", "200 ms", "Time between two watermarks of a source, at most: one that reads fast makes one each 5,000 records. 0: none.";
        BUFFER_TIMEOUT_ENABLED: bool = "execution.buffer-timeout.enabled", "true", "If false, output buffers are sent only when full.";
        BUFFER_TIMEOUT: Duration = "execution.buffer-timeout.interval", "100 ms", "Time after which a partly filled output buffer is sent; 0: after each batch.";
        ROW_ERROR_POLICY: String where ROW_ERROR_POLICIES = "execution.row-errors.policy", "fail", "What becomes of a row that user code or a format refuses: fail, skip or dead-letter.";
        ROW_ERROR_DEAD_LETTER_DIR: Option<String> = "execution.row-errors.dead-letter.dir", "(none)", "Directory that receives refused rows with their coordinates, for the policy dead-letter.";
        CHECKPOINTING_INTERVAL: Option<Duration> where CHECKPOINT_TIMES = "execution.checkpointing.interval", "(none)", "Time between two checkpoints; unset: none is taken.";
        CHECKPOINTING_MODE: String where CHECKPOINTING_MODES = "execution.checkpointing.mode", "EXACTLY_ONCE", "EXACTLY_ONCE, or AT_LEAST_ONCE: no input waits for another, and rows may be processed twice after a failure.";
        CHECKPOINTING_TIMEOUT: Duration where CHECKPOINT_TIMES = "execution.checkpointing.timeout", "10 min", "Time after which a checkpoint that is not complete is given up.";
        CHECKPOINTING_MIN_PAUSE: Duration = "execution.checkpointing.min-pause", "0 ms", "Time from the end of a checkpoint to the beginning of the next, at least.";
        CHECKPOINTING_MAX_CONCURRENT: u32 where FROM_1_TO_1000 = "execution.checkpointing.max-concurrent-checkpoints", "1", "Checkpoints that may be under way at once.";
        CHECKPOINTING_TOLERABLE_FAILURES: u32 = "execution.checkpointing.tolerable-failed-checkpoints", "0", "Checkpoints that may fail one after the other before the job restarts.";
        CHECKPOINT_RETENTION: String where CHECKPOINT_RETENTIONS = "execution.checkpointing.externalized-checkpoint-retention", "NO_EXTERNALIZED_CHECKPOINTS", "What becomes of the last checkpoints when the job ends: they are kept if it FAILED, with RETAIN_ON_CANCELLATION also if it was CANCELED, and deleted otherwise.";
        CHECKPOINTS_RETAINED: u32 where FROM_1_TO_1000 = "execution.checkpointing.num-retained", "1", "Complete checkpoints that are kept; with 2 a damaged one can be passed over.";
        CHECKPOINTS_AFTER_TASKS_FINISH: bool = "execution.checkpointing.checkpoints-after-tasks-finish", "true", "Whether checkpoints go on when some tasks have finished.";
        CHECKPOINTING_DIR: Option<String> = "execution.checkpointing.dir", "(none)", "Directory of the checkpoints, which are in DIR/JOB/chk-N; unset: within the engine's state directory.";
        SAVEPOINT_DIR: Option<String> = "execution.checkpointing.savepoint-dir", "(none)", "Directory of savepoints for which none is given.";
        DATA_INLINE_THRESHOLD: MemorySize where INLINE_THRESHOLDS = "execution.checkpointing.data-inline-threshold", "20 kb", "State up to this length is kept in the metadata, not in a file of its own.";
        CHECKPOINTING_INCREMENTAL: bool = "execution.checkpointing.incremental", "false", "Whether a checkpoint writes only what changed.";
        RECOVERY_PATH: Option<String> = "execution.state-recovery.path", "(none)", "Checkpoint or savepoint that the job goes on from.";
        RECOVERY_IGNORE_UNCLAIMED: bool = "execution.state-recovery.ignore-unclaimed-state", "false", "Whether state of operators that the job does not have is dropped; otherwise the job is refused.";
        STATE_BACKEND: String where STATE_BACKENDS = "state.backend.type", "hashmap", "Where keyed state is kept: hashmap, in memory; disk, in files below cluster.storage-dir or a temporary directory, and may be larger than memory.";
        STATE_BACKEND_DISK_MEMORY: MemorySize = "state.backend.disk.memory", "128 mb", "Memory of one task for what it read and wrote last of its state on disk, about.";
        RESTART_STRATEGY: Option<String> where RESTART_STRATEGIES = "restart-strategy.type", "(none)", "none, fixed-delay, failure-rate or exponential-delay; unset: exponential-delay with checkpoints, none without.";
        FIXED_DELAY_ATTEMPTS: u32 = "restart-strategy.fixed-delay.attempts", "1", "Number of restarts before the job fails.";
        FIXED_DELAY_DELAY: Duration = "restart-strategy.fixed-delay.delay", "1 s", "Time between a failure and the restart.";
        FAILURE_RATE_MAX: u32 = "restart-strategy.failure-rate.max-failures-per-interval", "1", "Failures within the interval that are followed by a restart.";
        FAILURE_RATE_INTERVAL: Duration = "restart-strategy.failure-rate.failure-rate-interval", "1 min", "Interval over which failures are counted.";
        FAILURE_RATE_DELAY: Duration = "restart-strategy.failure-rate.delay", "1 s", "Time between a failure and the restart.";
        EXPONENTIAL_INITIAL: Duration = "restart-strategy.exponential-delay.initial-backoff", "1 s", "Delay of the first restart.";
        EXPONENTIAL_MAX: Duration = "restart-strategy.exponential-delay.max-backoff", "1 min", "Longest delay.";
        EXPONENTIAL_MULTIPLIER: f64 where BACKOFF_MULTIPLIERS = "restart-strategy.exponential-delay.backoff-multiplier", "1.5", "Factor between two delays.";
        EXPONENTIAL_RESET: Duration = "restart-strategy.exponential-delay.reset-backoff-threshold", "1 h", "Time without failure after which the delay starts anew.";
        EXPONENTIAL_JITTER: f64 where SHARES = "restart-strategy.exponential-delay.jitter-factor", "0.1", "Random share of the delay, 0 to 1.";
        EXPONENTIAL_ATTEMPTS: Option<u32> as super::parse_unless_infinite = "restart-strategy.exponential-delay.attempts-before-reset-backoff", "infinite", "Restarts before the job fails, or infinite.";
        FAILOVER_STRATEGY: String where FAILOVER_STRATEGIES = "jobmanager.execution.failover-strategy", "region", "region: restart what a failure touches; full: restart all.";
        ATTEMPTS_HISTORY: u32 where UP_TO_1000 = "jobmanager.execution.attempts-history-size", "16", "Former attempts kept for each subtask.";
        HEARTBEAT_INTERVAL: Duration where PERIODS = "heartbeat.interval", "10 s", "Time between two heartbeats.";
        HEARTBEAT_TIMEOUT: Duration where PERIODS = "heartbeat.timeout", "50 s", "Silence after which a peer counts as lost.";
        REGISTRATION_INITIAL_TIMEOUT: Duration where PERIODS = "cluster.registration.initial-timeout", "100 ms", "First wait for the answer to a registration; doubled with each try.";
        REGISTRATION_MAX_TIMEOUT: Duration where PERIODS = "cluster.registration.max-timeout", "30 s", "Longest wait for the answer to a registration.";
        REGISTRATION_REFUSED_DELAY: Duration where PERIODS = "cluster.registration.refused-registration-delay", "30 s", "Pause after a refused registration.";
        SLOTS: u32 where SLOTS_PER_TASK_EXECUTOR = "taskmanager.numberOfTaskSlots", "1", "Slots of each TaskExecutor. In `engine submit` without a JobManager: as many as the job needs, if unset; in `engine cluster`: 8 or the number of CPU cores, if unset.";
        TASK_MANAGER_REGISTRATION_TIMEOUT: Duration = "taskmanager.registration.timeout", "5 min", "Time without a ResourceManager after which a TaskExecutor ends.";
        SLOT_TIMEOUT: Duration = "taskmanager.slot.timeout", "10 s", "Time after which a slot that was allocated but not used is freed.";
        SLOT_REQUEST_TIMEOUT: Duration = "slot.request.timeout", "5 min", "Time after which an unfulfilled slot request fails the job.";
        SLOT_IDLE_TIMEOUT: Duration = "slot.idle.timeout", "50 s", "Time after which a job gives back a slot it does not use.";
        RESOURCE_MANAGER_JOB_TIMEOUT: Duration = "resourcemanager.job.timeout", "5 min", "Time after which a job without leader is forgotten.";
        TASK_CANCELLATION_TIMEOUT: Duration = "task.cancellation.timeout", "3 min", "Time after which a task that does not end is reported.";
        SEGMENT_SIZE: MemorySize where SEGMENT_SIZES = "taskmanager.memory.segment-size", "32 kb", "Size of a network buffer: rows are sent at this fill.";
        MAX_BUFFERS_PER_CHANNEL: u32 where FROM_1_TO_1000 = "taskmanager.network.memory.max-buffers-per-channel", "10", "Buffers queued for one channel before the producer waits.";
        JOB_STORE_CACHE_SIZE: MemorySize = "jobstore.cache-size", "50 mb", "Memory for finished jobs.";
        JOB_STORE_EXPIRATION: Duration as super::parse_seconds = "jobstore.expiration-time", "3600", "Time for which finished jobs are shown; a bare number counts seconds.";
        EXCEPTION_HISTORY: u32 where UP_TO_1000 = "web.exception-history-size", "16", "Failures kept for each job.";
        REST_ADDRESS: String = "rest.bind-address", "127.0.0.1", "Address that REST listens on.";
        REST_PORT: u32 where PORTS = "rest.port", "8081", "Port that REST listens on; 0: any.";
        JOB_MANAGER_URL: Option<String> = "rest.address", "(none)", "Where a JobManager's REST is reached, for example http://127.0.0.1:8081.";
        CLIENT_TIMEOUT: Duration = "client.timeout", "1 min", "Longest wait of the command line for the answer to one request.";
        REST_CONNECTION_TIMEOUT: Duration = "rest.connection-timeout", "15 s", "Longest wait of the command line for a connection to REST.";
        REST_RETRY_ATTEMPTS: u32 = "rest.retry.max-attempts", "20", "How often a client asks again: while it waits for a job, when there is no connection or no leader; while it submits one, when there is no place or no leader.";
        REST_RETRY_DELAY: Duration = "rest.retry.delay", "3 s", "Pause before it asks again.";
        WEB_REFRESH: Duration = "web.refresh-interval", "3 s", "How often pages that show the cluster should ask again; told by GET /config.";
        WEB_CANCEL: bool = "web.cancel.enable", "true", "Whether jobs may be cancelled over REST.";
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
        ROW_BYTES_MAX: MemorySize = "sandbox.row.bytes-max", "4 mb", "Longest row that a plugin may emit, or that is read; a longer line of text is a refused row.";
        LOG_LINE_BYTES: MemorySize = "sandbox.log.line-bytes", "1 kb", "Longest log line; the rest is cut.";
        LOG_BYTES_PER_SECOND: MemorySize = "sandbox.log.bytes-per-second", "64 kb", "Log of one task; what is above is dropped and counted.";
        METRICS_MAX: u32 = "sandbox.metrics.max", "100", "Metrics of one task.";
        STATE_BYTES_MAX: MemorySize = "state.bytes-max", "4 gb", "Keyed state, also on disk, and timers of one task; what is above fails the job. What a plugin keeps in its own memory (state.cache.bytes) counts once it is written, at the end of the input at the latest.";
        STATE_VALUE_BYTES_MAX: MemorySize = "state.value.bytes-max", "16 mb", "Longest value of keyed state.";
        STATE_TIMERS_MAX: u64 = "state.timers.max", "50000000", "Timers of one task; what is above fails the job.";
        STATE_CACHE_BYTES: MemorySize = "state.cache.bytes", "16 mb", "Keyed state that a plugin's instance keeps in its own memory, about; the rest is kept by the engine.";
        PLUGIN_BYTES_MAX: MemorySize = "plugin.bytes-max", "16 mb", "Longest plugin.";
        PLUGIN_COMPILE_CPU_TIME: Duration = "plugin.compile.cpu-time", "30 s", "CPU time that compiling a plugin may take.";
        PLUGIN_CACHE_DIR: Option<String> = "plugin.cache-dir", "(none)", "Directory of compiled plugins, which only the user that runs the engine may write into: another one is not used, as the log says; unset: `engine` in the user's cache directory.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_valid() {
        for option in options::ALL {
            assert!(option.admits(option.default), "{}", option.key);
        }
    }

    /// To renew the file, run this test with `UPDATE_REFERENCE=1`.
    #[test]
    fn the_reference_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/CONFIGURATION.md");
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(path, reference()).expect("written");
        }
        assert_eq!(std::fs::read_to_string(path).expect("there"), reference(), "{path} is out of date");
    }

    /// Flink's defaults of the keys that this engine knows, from its option tables.
    #[test]
    fn defaults_equal_flinks() {
        let flinks: BTreeMap<String, String> =
            serde_json::from_str(include_str!("../../tests-data/flink_config_defaults.json")).expect("JSON");
        let mut compared = 0;
        for option in options::ALL {
            let Some(flinks) = flinks.get(option.key) else { continue };
            let mean_the_same = option.default == flinks
                || MemorySize::parse(option.default).is_some_and(|size| MemorySize::parse(flinks) == Some(size))
                || (option.default == "(none)" && flinks == "-1");
            assert!(mean_the_same, "{}: {} is {flinks} in Flink", option.key, option.default);
            assert!(option.admits(flinks), "{} does not take {flinks}", option.key);
            compared += 1;
        }
        assert!(compared > 35, "only {compared} keys are Flink's");
    }

    #[test]
    fn a_file_takes_dotted_nested_and_quoted_keys() {
        let text = "parallelism.default = 4\n\"rest.port\" = 0\n[heartbeat]\ninterval = \"1 s\"\n[pipeline.operator-chaining]\nenabled = false\n";
        let configuration = Configuration::parse_file(text, Path::new("engine.toml")).expect("valid");
        assert_eq!(configuration.get(&options::PARALLELISM), 4);
        assert_eq!(configuration.get(&options::REST_PORT), 0);
        assert_eq!(configuration.get(&options::HEARTBEAT_INTERVAL), Duration::from_secs(1));
        assert!(!configuration.get(&options::OPERATOR_CHAINING));
        assert!(configuration.iter().all(|(_, _, origin)| origin == Origin::File));
    }

    #[track_caller]
    fn check_file(text: &str, expected: &str) {
        let error = Configuration::parse_file(text, Path::new("engine.toml")).expect_err("refused");
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_bad_file_is_refused_with_file_and_line() {
        check_file(
            "# a comment\n\n[heartbeat]\nintervall = \"1 s\"\n",
            "engine.toml, line 4: unknown configuration key \"heartbeat.intervall\", did you mean \"heartbeat.interval\"?",
        );
        check_file(
            "parallelism.default = 0",
            "engine.toml, line 1: invalid value \"0\" for \"parallelism.default\": expected a whole number from 1 to 32768",
        );
        check_file(
            "rest.port = [1]",
            "engine.toml, line 1: invalid value \"a list\" for \"rest.port\": expected a whole number from 0 to 65535",
        );
        let error = Configuration::parse_file("a = 1\nb = \n", Path::new("x.toml")).expect_err("no TOML");
        assert!(error.to_string().starts_with("x.toml, line 2: "), "{error}");
    }

    #[test]
    fn words_and_ranges_are_checked() {
        let mut configuration = Configuration::default();
        let mut set = |key, value| configuration.set(key, value, Origin::Dynamic).map_err(|error| error.to_string());
        assert_eq!(set("restart-strategy.type", "fixed-delay"), Ok(()));
        assert_eq!(
            set("restart-strategy.type", "sometimes"),
            Err("invalid value \"sometimes\" for \"restart-strategy.type\": expected one of none, off, disable, fixed-delay, \
                 failure-rate, exponential-delay"
                .to_owned())
        );
        assert_eq!(set("pipeline.max-parallelism", "-1"), Ok(()));
        assert!(set("pipeline.max-parallelism", "40000").is_err());
        assert!(set("restart-strategy.exponential-delay.jitter-factor", "1.5").is_err());
        assert_eq!(set("jobstore.expiration-time", "3600"), Ok(()));
        assert_eq!(configuration.get(&options::JOB_STORE_EXPIRATION), Duration::from_secs(3600));
        assert_eq!(configuration.get(&options::EXPONENTIAL_ATTEMPTS), None);
        assert_eq!(configuration.get(&options::MAX_PARALLELISM), None);
    }

    #[test]
    fn what_would_exhaust_the_process_is_refused_when_it_is_read() {
        for (key, bad, good) in [
            ("taskmanager.memory.segment-size", &["1tb", "63", "0"][..], &["64", "32 kb", "16 mb"][..]),
            ("taskmanager.network.memory.max-buffers-per-channel", &["0", "4294967295"], &["1", "1000"]),
            ("execution.checkpointing.data-inline-threshold", &["2 mb"], &["0b", "1 mb"]),
            ("execution.checkpointing.max-concurrent-checkpoints", &["0", "4294967295"], &["1"]),
            ("execution.checkpointing.num-retained", &["0", "4294967295"], &["1"]),
            ("heartbeat.interval", &["0 ms", "1 ms", "400 d"], &["10 ms", "1 d"]),
            ("heartbeat.timeout", &["0"], &["10 h"]),
            ("cluster.registration.initial-timeout", &["0 s"], &["100 ms"]),
            ("cluster.registration.max-timeout", &["0 s"], &["30 s"]),
            ("cluster.registration.refused-registration-delay", &["0 s"], &["30 s"]),
            ("web.exception-history-size", &["4294967295"], &["16", "0"]),
            ("jobmanager.execution.attempts-history-size", &["4294967295"], &["16"]),
        ] {
            let set = |value: &&str| Configuration::default().set(key, value, Origin::Dynamic);
            assert!(bad.iter().all(|value| set(value).is_err()), "{key}");
            assert!(good.iter().all(|value| set(value).is_ok()), "{key}");
        }
        let error = Configuration::default().set("heartbeat.interval", "0 ms", Origin::File).expect_err("it spins");
        assert_eq!(
            error.to_string(),
            "invalid value \"0 ms\" for \"heartbeat.interval\": expected a duration such as \"100 ms\" or \"10 s\", \
             from 10 ms to 1 d"
        );
        let error = Configuration::default().set("taskmanager.memory.segment-size", "1tb", Origin::File);
        let message = error.expect_err("too long").to_string();
        assert!(message.ends_with(", from 64 b to 16 mb"), "{message}");
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
