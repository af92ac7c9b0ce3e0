//! Reads the options of a connector: text by name, checked when the job is
//! submitted and read again where the connector runs.

use crate::{
    base::config::{ConfigValue, nearest},
    connector::{ConnectorError, Role, alignment::ALIGNMENT_OPTIONS},
    graph::stream_graph::ConnectorSpec,
};

/// The options of one connector, none of which is unknown.
pub(super) struct Options<'a> {
    /// For messages: "file source".
    connector: String,
    spec: &'a ConnectorSpec,
}

impl<'a> Options<'a> {
    /// Takes the options, or refuses the first one that is not among `known`.
    pub(super) fn new(spec: &'a ConnectorSpec, role: Role, known: &[&str]) -> Result<Self, ConnectorError> {
        let options = Self::unchecked(spec, role);
        let of_all = |option: &str| role == Role::Source && ALIGNMENT_OPTIONS.contains(&option);
        match spec.options.keys().find(|option| !known.contains(&option.as_str()) && !of_all(option)) {
            None => Ok(options),
            Some(unknown) => {
                let hint = match nearest(unknown, known.iter().copied()) {
                    Some(nearest) => format!("there is no such option, did you mean \"{nearest}\"?"),
                    None if known.is_empty() => "there is no such option, it has none".to_owned(),
                    None => format!("there is no such option, only {}", known.join(", ")),
                };
                Err(options.error(unknown, hint))
            }
        }
    }

    /// Takes options that are checked elsewhere.
    pub(super) fn unchecked(spec: &'a ConnectorSpec, role: Role) -> Self {
        Self { connector: connector_name(spec, role), spec }
    }

    pub(super) fn error(&self, option: &str, problem: impl Into<String>) -> ConnectorError {
        let connector = self.connector.clone();
        ConnectorError::Option { connector, option: option.to_owned(), problem: problem.into() }
    }

    pub(super) fn required(&self, option: &str) -> Result<&'a str, ConnectorError> {
        match self.spec.options.get(option) {
            Some(value) if !value.is_empty() => Ok(value),
            _ => Err(self.error(option, "is required")),
        }
    }

    pub(super) fn text(&self, option: &str) -> Option<&'a str> {
        self.spec.options.get(option).map(String::as_str)
    }

    pub(super) fn value<T: ConfigValue>(&self, option: &str) -> Result<Option<T>, ConnectorError> {
        let Some(text) = self.text(option) else { return Ok(None) };
        match T::parse(text) {
            Some(value) => Ok(Some(value)),
            None => Err(self.error(option, format!("expected {}, found \"{text}\"", T::EXPECTED))),
        }
    }

    /// A number of at least one.
    pub(super) fn positive(&self, option: &str) -> Result<Option<u64>, ConnectorError> {
        match self.value::<u64>(option)? {
            Some(0) => Err(self.error(option, "expected a whole number above 0, found \"0\"")),
            value => Ok(value),
        }
    }

    /// One of the named choices; the first one if the option is not set.
    pub(super) fn choice<T: Copy>(&self, option: &str, choices: &[(&str, T)]) -> Result<T, ConnectorError> {
        let text = self.text(option).unwrap_or(choices[0].0);
        match choices.iter().find(|(name, _)| *name == text) {
            Some((_, value)) => Ok(*value),
            None => {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                Err(self.error(option, format!("expected one of {}, found \"{text}\"", names.join(", "))))
            }
        }
    }
}

/// "file source".
fn connector_name(spec: &ConnectorSpec, role: Role) -> String {
    format!("{} {}", spec.name, role.word())
}

/// The connector cannot have records of the type.
pub(super) fn record_type_error(spec: &ConnectorSpec, role: Role, problem: impl Into<String>) -> ConnectorError {
    let connector = connector_name(spec, role);
    ConnectorError::Option { connector, option: "record type".to_owned(), problem: problem.into() }
}
