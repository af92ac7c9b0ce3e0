//! Whether and when a job restarts after a failure.
//!
//! Pure: told of each failure with its time, answers with a decision. Source:
//! Flink's `*RestartBackoffTimeStrategy` and their factory loader.

use std::{collections::VecDeque, fmt, time::Duration};

use rand::Rng;

use crate::base::{
    clock::Timestamp,
    config::{Configuration, format_duration, options},
};

/// The configured strategy is unknown or contradicts itself.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RestartStrategyError {
    /// No strategy has the name.
    #[error("unknown restart strategy \"{0}\": expected none, fixed-delay, failure-rate or exponential-delay")]
    Unknown(String),
    /// A value is out of range.
    #[error("invalid value {value} for \"{key}\": expected {expected}")]
    Invalid {
        /// The key.
        key: &'static str,
        /// As set.
        value: String,
        /// What would be valid.
        expected: &'static str,
    },
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RestartDecision {
    /// Restart after the delay; a new attempt, which is counted.
    Restart(Duration),
    /// Restart after the delay, together with what an earlier failure already set going.
    Merge(Duration),
    /// The job fails.
    Fail,
}

/// A restart strategy with its memory of failures.
#[derive(Clone, Debug, PartialEq)]
pub enum RestartStrategy {
    /// The first failure is fatal.
    NoRestart,
    /// See [`FixedDelay`].
    FixedDelay(FixedDelay),
    /// See [`FailureRate`].
    FailureRate(FailureRate),
    /// See [`ExponentialDelay`].
    ExponentialDelay(ExponentialDelay),
}

/// Restarts a number of times, which success does not renew.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedDelay {
    /// Number of restarts.
    pub attempts_max: u32,
    /// Time between failure and restart.
    pub delay: Duration,
    /// Failures so far.
    failures: u32,
}

/// Restarts as long as there are not too many failures within an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureRate {
    /// Failures within the interval that are followed by a restart.
    pub failures_max: u32,
    /// Over which failures are counted; one that is just as old still counts.
    pub interval: Duration,
    /// Time between failure and restart.
    pub delay: Duration,
    /// The last `failures_max + 1`, the oldest first.
    failures: VecDeque<Timestamp>,
}

/// Restarts with growing delays.
#[derive(Clone, Debug, PartialEq)]
pub struct ExponentialDelay {
    /// First and least delay.
    pub initial: Duration,
    /// Longest delay.
    pub max: Duration,
    /// Factor between two delays.
    pub multiplier: f64,
    /// Time after a planned restart from which a failure begins anew.
    pub reset: Duration,
    /// Random share of the delay, 0 to 1.
    pub jitter: f64,
    /// Restarts since the last reset; none: no limit.
    pub attempts_max: Option<u32>,
    attempt: u32,
    /// Failures up to then belong to the attempt that it ends.
    next_restart: Option<Timestamp>,
}

impl RestartStrategy {
    /// Makes the configured strategy; without one: exponential delay with checkpoints, none without.
    ///
    /// # Errors
    /// Returns an error if the type is unknown or a parameter is out of range.
    pub fn new(configuration: &Configuration) -> Result<Self, RestartStrategyError> {
        let Some(name) = configuration.get(&options::RESTART_STRATEGY) else {
            return match configuration.get(&options::CHECKPOINTING_INTERVAL) {
                Some(_) => ExponentialDelay::new(configuration).map(Self::ExponentialDelay),
                None => Ok(Self::NoRestart),
            };
        };
        match name.trim().to_ascii_lowercase().as_str() {
            "none" | "disable" | "off" => Ok(Self::NoRestart),
            "fixed-delay" | "fixeddelay" => Ok(Self::FixedDelay(FixedDelay {
                attempts_max: configuration.get(&options::FIXED_DELAY_ATTEMPTS),
                delay: configuration.get(&options::FIXED_DELAY_DELAY),
                failures: 0,
            })),
            "failure-rate" | "failurerate" => Ok(Self::FailureRate(FailureRate {
                failures_max: configuration.get(&options::FAILURE_RATE_MAX),
                interval: configuration.get(&options::FAILURE_RATE_INTERVAL),
                delay: configuration.get(&options::FAILURE_RATE_DELAY),
                failures: VecDeque::new(),
            })),
            "exponential-delay" | "exponentialdelay" => {
                ExponentialDelay::new(configuration).map(Self::ExponentialDelay)
            }
            _ => Err(RestartStrategyError::Unknown(name)),
        }
    }

    /// Takes a failure into account.
    pub fn on_failure(&mut self, now: Timestamp) -> RestartDecision {
        match self {
            Self::NoRestart => RestartDecision::Fail,
            Self::FixedDelay(fixed_delay) => fixed_delay.on_failure(),
            Self::FailureRate(failure_rate) => failure_rate.on_failure(now),
            Self::ExponentialDelay(exponential_delay) => exponential_delay.on_failure(now),
        }
    }
}

impl FixedDelay {
    fn on_failure(&mut self) -> RestartDecision {
        self.failures = self.failures.saturating_add(1);
        if self.failures <= self.attempts_max { RestartDecision::Restart(self.delay) } else { RestartDecision::Fail }
    }
}

impl FailureRate {
    fn on_failure(&mut self, now: Timestamp) -> RestartDecision {
        if self.is_full() {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        let oldest = self.failures.front().copied().unwrap_or(now);
        if self.is_full() && now.since(oldest) <= self.interval {
            RestartDecision::Fail
        } else {
            RestartDecision::Restart(self.delay)
        }
    }

    fn is_full(&self) -> bool {
        (self.failures_max as usize) < self.failures.len()
    }
}

impl ExponentialDelay {
    fn new(configuration: &Configuration) -> Result<Self, RestartStrategyError> {
        let strategy = Self {
            initial: configuration.get(&options::EXPONENTIAL_INITIAL),
            max: configuration.get(&options::EXPONENTIAL_MAX),
            multiplier: configuration.get(&options::EXPONENTIAL_MULTIPLIER),
            reset: configuration.get(&options::EXPONENTIAL_RESET),
            jitter: configuration.get(&options::EXPONENTIAL_JITTER),
            attempts_max: configuration.get(&options::EXPONENTIAL_ATTEMPTS),
            attempt: 0,
            next_restart: None,
        };
        let invalid = |key, value: String, expected| Err(RestartStrategyError::Invalid { key, value, expected });
        if strategy.multiplier < 1.0 {
            let value = strategy.multiplier.to_string();
            return invalid(options::EXPONENTIAL_MULTIPLIER.key, value, "a number of at least 1");
        }
        if !(0.0..=1.0).contains(&strategy.jitter) {
            return invalid(options::EXPONENTIAL_JITTER.key, strategy.jitter.to_string(), "a number from 0 to 1");
        }
        if strategy.max < strategy.initial {
            let expected = "at least \"restart-strategy.exponential-delay.initial-backoff\"";
            return invalid(options::EXPONENTIAL_MAX.key, format_duration(strategy.max), expected);
        }
        Ok(strategy)
    }

    fn on_failure(&mut self, now: Timestamp) -> RestartDecision {
        match self.next_restart {
            Some(planned) if now <= planned => {
                return self.unless_exhausted(RestartDecision::Merge(planned.since(now)));
            }
            Some(planned) if self.reset <= now.since(planned) => self.attempt = 0,
            Some(_) | None => {}
        }
        let delay = self.delay();
        self.next_restart = Some(now.plus(delay));
        self.attempt = self.attempt.saturating_add(1);
        self.unless_exhausted(RestartDecision::Restart(delay))
    }

    fn unless_exhausted(&self, decision: RestartDecision) -> RestartDecision {
        match self.attempts_max {
            Some(attempts_max) if attempts_max < self.attempt => RestartDecision::Fail,
            Some(_) | None => decision,
        }
    }

    /// Delay of the next attempt, in whole milliseconds.
    fn delay(&self) -> Duration {
        let exponent = i32::try_from(self.attempt).unwrap_or(i32::MAX);
        let delay_ms = self.initial.as_millis() as f64 * self.multiplier.powi(exponent);
        let offset_ms = if self.jitter == 0.0 {
            0.0
        } else {
            delay_ms.min(self.max.as_millis() as f64) * self.jitter * rand::rng().random_range(-1.0..=1.0)
        };
        // Converting saturates, so that a delay beyond all bounds becomes the longest.
        Duration::from_millis((delay_ms + offset_ms) as u64).clamp(self.initial, self.max)
    }
}

/// A sentence for users.
impl fmt::Display for RestartStrategy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRestart => formatter.write_str("no restart: the first failure fails the job"),
            Self::FixedDelay(FixedDelay { attempts_max, delay, .. }) => {
                let delay = format_duration(*delay);
                write!(formatter, "fixed delay: restarts {delay} after a failure, at most {attempts_max} times")
            }
            Self::FailureRate(FailureRate { failures_max, interval, delay, .. }) => {
                let (interval, delay) = (format_duration(*interval), format_duration(*delay));
                write!(
                    formatter,
                    "failure rate: restarts {delay} after a failure, at most {failures_max} times within {interval}"
                )
            }
            Self::ExponentialDelay(strategy) => {
                let (initial, max) = (format_duration(strategy.initial), format_duration(strategy.max));
                let reset = format_duration(strategy.reset);
                write!(
                    formatter,
                    "exponential delay: restarts after {initial} to {max}, times {} with each failure, anew after {reset} without one",
                    strategy.multiplier
                )?;
                match strategy.attempts_max {
                    Some(attempts_max) => write!(formatter, ", at most {attempts_max} times"),
                    None => formatter.write_str(", without limit"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;
    use crate::base::config::Origin;

    /// Flink's decisions over time; see `tests-data/job_master/restart.json`.
    #[derive(Deserialize)]
    struct Vectors {
        scenarios: Vec<Scenario>,
        defaults: Vec<Value>,
    }

    #[derive(Deserialize)]
    struct Scenario {
        name: String,
        strategy: Value,
        failures: Vec<Failure>,
    }

    #[derive(Deserialize)]
    struct Failure {
        t_ms: i64,
        counts_as_new_attempt: bool,
        can_restart: bool,
        backoff_ms: Option<u64>,
    }

    fn vectors() -> Vectors {
        serde_json::from_str(include_str!("../../../tests-data/job_master/restart.json")).unwrap()
    }

    fn configuration(values: &[(&str, &str)]) -> Configuration {
        let mut configuration = Configuration::default();
        for (key, value) in values {
            configuration.set(key, value, Origin::Program).unwrap();
        }
        configuration
    }

    fn strategy_of(parameters: &Value) -> RestartStrategy {
        let name = parameters["type"].as_str().unwrap();
        let mut configuration = configuration(&[("restart-strategy.type", name)]);
        for (parameter, key, unit) in [
            ("attempts", "attempts", ""),
            ("delay_ms", "delay", " ms"),
            ("max_failures_per_interval", "max-failures-per-interval", ""),
            ("interval_ms", "failure-rate-interval", " ms"),
            ("initial_ms", "initial-backoff", " ms"),
            ("max_ms", "max-backoff", " ms"),
            ("multiplier", "backoff-multiplier", ""),
            ("reset_ms", "reset-backoff-threshold", " ms"),
            ("jitter", "jitter-factor", ""),
        ] {
            let value = &parameters[parameter];
            if !value.is_null() {
                let key = match (name, key) {
                    ("exponential-delay", "attempts") => "attempts-before-reset-backoff",
                    (_, key) => key,
                };
                let key = format!("restart-strategy.{name}.{key}");
                configuration.set(&key, &format!("{value}{unit}"), Origin::Program).unwrap();
            }
        }
        RestartStrategy::new(&configuration).unwrap()
    }

    #[test]
    fn decisions_equal_flinks() {
        let scenarios = vectors().scenarios;
        assert_eq!(scenarios.len(), 12);
        for scenario in scenarios {
            let mut strategy = strategy_of(&scenario.strategy);
            for failure in scenario.failures {
                let expected = match (failure.can_restart, failure.counts_as_new_attempt, failure.backoff_ms) {
                    (false, _, _) => RestartDecision::Fail,
                    (true, true, delay) => RestartDecision::Restart(Duration::from_millis(delay.unwrap())),
                    (true, false, delay) => RestartDecision::Merge(Duration::from_millis(delay.unwrap())),
                };
                let actual = strategy.on_failure(Timestamp(failure.t_ms));
                assert_eq!(actual, expected, "{} at {}", scenario.name, failure.t_ms);
            }
        }
    }

    #[test]
    fn without_checkpoints_the_default_is_no_restart() {
        let defaults = vectors().defaults;
        assert_eq!(defaults[0]["checkpointing"], false);
        assert_eq!(defaults[0]["effective"], "no restart");
        assert_eq!(RestartStrategy::new(&Configuration::default()), Ok(RestartStrategy::NoRestart));
        assert_eq!(defaults[2]["effective"], "no restart");
        let configured = defaults[2]["configured"].as_str().unwrap();
        for alias in [configured, "off", "none"] {
            let configuration = configuration(&[("restart-strategy.type", alias)]);
            assert_eq!(RestartStrategy::new(&configuration), Ok(RestartStrategy::NoRestart));
        }
    }

    #[test]
    fn with_checkpoints_the_default_is_exponential_delay() {
        let defaults = vectors().defaults;
        assert_eq!(defaults[1]["checkpointing"], true);
        assert!(defaults[1]["effective_1_20"].as_str().unwrap().starts_with("exponential-delay (1 s, 1 min, x1.5"));
        let interval = ("execution.checkpointing.interval", "1 s");
        let named = RestartStrategy::new(&configuration(&[("restart-strategy.type", "exponential-delay")]));
        assert_eq!(RestartStrategy::new(&configuration(&[interval])), named);
        let disabled = RestartStrategy::new(&configuration(&[interval, ("restart-strategy.type", "disable")]));
        assert_eq!(disabled, Ok(RestartStrategy::NoRestart));
    }

    #[test]
    fn parameters_default_to_flinks() {
        let of = |name| RestartStrategy::new(&configuration(&[("restart-strategy.type", name)])).unwrap().to_string();
        assert_eq!(of("fixed-delay"), "fixed delay: restarts 1 s after a failure, at most 1 times");
        assert_eq!(of("failure-rate"), "failure rate: restarts 1 s after a failure, at most 1 times within 1 min");
        assert_eq!(
            of("exponential-delay"),
            "exponential delay: restarts after 1 s to 1 min, times 1.5 with each failure, anew after 1 h without one, without limit"
        );
    }

    #[test]
    fn jitter_stays_within_its_share_and_the_bounds() {
        for _ in 0..200 {
            let values = [
                ("restart-strategy.type", "exponential-delay"),
                ("restart-strategy.exponential-delay.jitter-factor", "0.5"),
                ("restart-strategy.exponential-delay.max-backoff", "1600 ms"),
            ];
            let mut strategy = RestartStrategy::new(&configuration(&values)).unwrap();
            let mut now = Timestamp(0);
            for (least, most) in [(1000, 1500), (1000, 1600), (1000, 1600)] {
                let RestartDecision::Restart(delay) = strategy.on_failure(now) else { panic!("no limit") };
                assert!((least..=most).contains(&delay.as_millis()), "{delay:?}");
                now = now.plus(delay).plus(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn invalid_settings_say_what_is_expected() {
        let error_of = |values: &[(&str, &str)]| RestartStrategy::new(&configuration(values)).unwrap_err().to_string();
        assert_eq!(
            error_of(&[
                ("restart-strategy.type", "exponential-delay"),
                ("restart-strategy.exponential-delay.max-backoff", "10 ms"),
            ]),
            "invalid value 10 ms for \"restart-strategy.exponential-delay.max-backoff\": expected at least \"restart-strategy.exponential-delay.initial-backoff\""
        );
    }
}
