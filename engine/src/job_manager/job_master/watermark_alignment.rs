//! How far the sources of a job are in event time, so that those of one group wait for
//! the one furthest behind.

use std::{collections::BTreeMap, time::Duration};

use crate::{base::clock::Timestamp, connector::AlignmentOptions};

/// The watermarks of a job's sources that wait for each other.
#[derive(Debug, Default)]
pub struct WatermarkAlignment {
    groups: BTreeMap<String, Group>,
    /// By node: group and greatest drift.
    sources: BTreeMap<u32, (String, Duration)>,
}

/// Last reports by node and subtask index; one that has not reported is not waited for.
#[derive(Debug, Default)]
struct Group(BTreeMap<(u32, u32), Timestamp>);

impl WatermarkAlignment {
    /// Takes a source into its group.
    pub fn add_source(&mut self, node: u32, options: AlignmentOptions) {
        self.groups.entry(options.group.clone()).or_default();
        self.sources.insert(node, (options.group, options.max_drift));
    }

    /// Notes how far a subtask is; one that is idle or at its end reports [`Timestamp::MAX`].
    /// Returns how far its watermark may rise before it pauses: none if the source is in no group.
    pub fn report(&mut self, node: u32, subtask_index: u32, watermark: Timestamp) -> Option<Timestamp> {
        let (group, max_drift) = self.sources.get(&node)?;
        let Group(watermarks) = self.groups.get_mut(group)?;
        watermarks.insert((node, subtask_index), watermark);
        let least = watermarks.values().min().copied().unwrap_or(Timestamp::MAX);
        Some(least.plus(*max_drift))
    }

    /// Forgets a subtask, which has ended or begins anew: nobody waits for it.
    pub fn forget(&mut self, node: u32, subtask_index: u32) {
        for Group(watermarks) in self.groups.values_mut() {
            watermarks.remove(&(node, subtask_index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alignment(sources: &[(u32, &str, u64)]) -> WatermarkAlignment {
        let mut alignment = WatermarkAlignment::default();
        for (node, group, max_drift) in sources {
            let options = AlignmentOptions {
                group: (*group).to_owned(),
                max_drift: Duration::from_millis(*max_drift),
                update_interval: Duration::from_secs(1),
            };
            alignment.add_source(*node, options);
        }
        alignment
    }

    /// Flink's answers: least of the group, drift, and how far a source may go.
    #[test]
    fn a_source_may_go_as_far_as_flinks() {
        for (least, drift, allowed) in [(1000, 500, 1500), (i64::MAX, 500, i64::MAX), (i64::MIN, 500, i64::MIN + 500)] {
            let mut alignment = alignment(&[(1, "a", drift), (2, "a", drift)]);
            alignment.report(1, 0, Timestamp(least));
            assert_eq!(alignment.report(2, 0, Timestamp::MAX), Some(Timestamp(allowed)));
        }
    }

    #[test]
    fn a_group_is_as_far_as_the_last_of_its_subtasks() {
        let mut alignment = alignment(&[(1, "a", 10), (2, "a", 100), (3, "b", 10)]);
        let mut report =
            |node, subtask, watermark| alignment.report(node, subtask, Timestamp(watermark)).map(|allowed| allowed.0);
        assert_eq!(report(1, 0, 1000), Some(1010));
        assert_eq!(report(1, 1, 500), Some(510));
        assert_eq!(report(2, 0, 700), Some(600));
        assert_eq!(report(3, 0, 0), Some(10), "another group");
        assert_eq!(report(4, 0, 0), None, "no group");
        assert_eq!(report(1, 1, i64::MAX), Some(710), "idle");
        assert_eq!(report(1, 1, 900), Some(710));
        alignment.forget(2, 0);
        assert_eq!(alignment.report(1, 0, Timestamp(1000)), Some(Timestamp(910)));
    }
}
