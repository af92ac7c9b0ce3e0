//! Options by which sources wait for each other in event time; every source has them.

use std::time::Duration;

use super::{ConnectorError, Role, options::Options};
use crate::graph::stream_graph::ConnectorSpec;

/// Names of the options.
pub(super) const ALIGNMENT_OPTIONS: [&str; 3] =
    ["watermark-alignment-group", "watermark-alignment-max-drift", "watermark-alignment-update-interval"];
/// Time between two reports of a source's watermark, as Flink's.
const UPDATE_INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// How a source waits for others.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AlignmentOptions {
    /// Sources of the job with this group wait for each other.
    pub group: String,
    /// The source pauses while its watermark is more than this above the least of the group.
    pub max_drift: Duration,
    /// Time between two reports of its watermark.
    pub update_interval: Duration,
}

impl AlignmentOptions {
    /// Reads the options of a source; none: it waits for nobody.
    ///
    /// # Errors
    /// Returns an error if an option is invalid or one is missing.
    pub fn parse(spec: &ConnectorSpec) -> Result<Option<Self>, ConnectorError> {
        let [group, max_drift, update_interval] = ALIGNMENT_OPTIONS;
        let options = Options::unchecked(spec, Role::Source);
        let Some(name) = options.text(group) else {
            return match [max_drift, update_interval].into_iter().find(|option| options.text(option).is_some()) {
                Some(option) => Err(options.error(option, format!("needs {group}"))),
                None => Ok(None),
            };
        };
        let drift = options.value::<Duration>(max_drift)?;
        let drift = drift.ok_or_else(|| options.error(max_drift, format!("is required with {group}")))?;
        let interval = options.value::<Duration>(update_interval)?.unwrap_or(UPDATE_INTERVAL_DEFAULT);
        if interval.is_zero() {
            return Err(options.error(update_interval, "must be above 0"));
        }
        Ok(Some(Self { group: name.to_owned(), max_drift: drift, update_interval: interval }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::{tests::spec, validate};

    #[test]
    fn every_source_has_the_options() {
        let group = ("watermark-alignment-group", "g");
        let drift = ("watermark-alignment-max-drift", "500 ms");
        let source = [("from", "0"), ("to", "9")];
        let with = |options: &[(&str, &str)]| spec("sequence", &[&source[..], options].concat());
        assert_eq!(AlignmentOptions::parse(&with(&[])).unwrap(), None);
        let spec = with(&[group, drift]);
        validate(&spec, Role::Source).unwrap();
        let expected = AlignmentOptions {
            group: "g".to_owned(),
            max_drift: Duration::from_millis(500),
            update_interval: Duration::from_secs(1),
        };
        assert_eq!(AlignmentOptions::parse(&spec).unwrap(), Some(expected));
        for (options, problem) in [
            (vec![drift], "option \"watermark-alignment-max-drift\": needs watermark-alignment-group"),
            (vec![group], "option \"watermark-alignment-max-drift\": is required with watermark-alignment-group"),
            (
                vec![group, drift, ("watermark-alignment-update-interval", "0 ms")],
                "option \"watermark-alignment-update-interval\": must be above 0",
            ),
        ] {
            let error = validate(&with(&options), Role::Source).unwrap_err().to_string();
            assert_eq!(error, format!("sequence source: {problem}"));
        }
    }
}
