//! `GET /metrics`: all metrics in Prometheus' text format, under Flink's names.

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};

use super::{RestState, error::RestError, metrics};
use crate::protocol::job_details::{JobDetails, JobOverview, TaskExecutorDetails};

/// Samples by metric name.
type Samples = BTreeMap<String, Vec<(Vec<(&'static str, String)>, f64)>>;

pub(crate) async fn export(State(state): State<Arc<RestState>>) -> Result<Response, RestError> {
    let overviews = state.jobs().await?;
    let task_executors = state.task_executors().await?;
    let mut jobs = Vec::new();
    let running = overviews.iter().filter(|job| !job.status.is_globally_terminal());
    for overview in running.take(metrics::JOBS_MAX) {
        // A job may have been forgotten since it was listed.
        jobs.extend(state.job(overview.job).await.ok());
    }
    let text = text(&overviews, &jobs, &task_executors, state.now());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

#[expect(clippy::cast_precision_loss, reason = "jobs and TaskExecutors are few")]
fn text(overviews: &[JobOverview], jobs: &[JobDetails], task_executors: &[TaskExecutorDetails], now: i64) -> String {
    let mut samples = Samples::new();
    let mut add = |name: String, labels: Vec<(&'static str, String)>, value: f64| {
        samples.entry(name).or_default().push((labels, value));
    };
    let running = overviews.iter().filter(|job| !job.status.is_globally_terminal()).count();
    let slots = |count: fn(&TaskExecutorDetails) -> u32| f64::from(task_executors.iter().map(count).sum::<u32>());
    for (name, value) in [
        ("numRunningJobs", running as f64),
        ("numRegisteredTaskManagers", task_executors.len() as f64),
        ("taskSlotsTotal", slots(|task_executor| task_executor.slots)),
        ("taskSlotsAvailable", slots(|task_executor| task_executor.free_slots)),
    ] {
        add(format!("flink_jobmanager_{name}"), Vec::new(), value);
    }
    for job in jobs {
        let of_job = [("job_id", job.job.to_string()), ("job_name", job.name.clone())];
        for (name, value) in metrics::of_job(job, now) {
            add(format!("flink_jobmanager_job_{name}"), of_job.to_vec(), value);
        }
        for vertex in &job.vertices {
            for (index, subtask) in vertex.subtasks.iter().enumerate() {
                let mut labels = of_job.to_vec();
                labels.push(("task_id", vertex.id.to_string()));
                labels.push(("task_name", vertex.name.clone()));
                labels.push(("subtask_index", index.to_string()));
                let task = &subtask.current.metrics;
                for (name, value) in metrics::of_task(task, &[]) {
                    // Operators' metrics follow, with the operator as a label.
                    if !name.contains('.') {
                        add(format!("flink_taskmanager_job_task_{name}"), labels.clone(), value);
                    }
                }
                // Prometheus refuses all samples if two have one name and the same labels; a plugin names its
                // metrics as it likes, and the engine's come first.
                let mut occurrences: BTreeMap<(u32, String), u32> = BTreeMap::new();
                for metric in &task.operators {
                    let operator = vertex.operators.iter().find(|(node, _)| *node == metric.node);
                    let mut labels = labels.clone();
                    labels.push((
                        "operator_name",
                        operator.map_or_else(|| metric.node.to_string(), |(_, name)| name.clone()),
                    ));
                    labels.push(("operator_id", metric.node.to_string()));
                    let name = sanitized(&metric.name);
                    let occurrence = occurrences.entry((metric.node, name.clone())).or_default();
                    *occurrence += 1;
                    if 1 < *occurrence {
                        labels.push(("metric", metric.name.clone()));
                        labels.push(("occurrence", occurrence.to_string()));
                    }
                    add(format!("flink_taskmanager_job_task_operator_{name}"), labels, metric.value);
                }
            }
        }
    }
    render(&samples)
}

/// Metric names of Prometheus have letters, digits, `_` and `:`.
fn sanitized(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == ':' { c } else { '_' }).collect()
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn render(samples: &Samples) -> String {
    let mut text = String::new();
    for (name, values) in samples {
        writeln!(text, "# TYPE {name} gauge").expect("a String takes all");
        for (labels, value) in values {
            text.push_str(name);
            if !labels.is_empty() {
                let labels: Vec<String> =
                    labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
                write!(text, "{{{}}}", labels.join(",")).expect("a String takes all");
            }
            writeln!(text, " {}", metrics::format(*value)).expect("a String takes all");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        base::status::JobStatus,
        protocol::job_master::OperatorMetric,
        rest::tests::{RUNNING, job},
    };

    #[test]
    fn no_two_samples_have_one_name_and_the_same_labels() {
        let mut job = job(RUNNING, JobStatus::Running);
        for vertex in &mut job.vertices {
            vertex.operators = vec![(1, "Map".to_owned()), (2, "Map".to_owned())];
            for subtask in &mut vertex.subtasks {
                let metric =
                    |(node, name, value): (u32, &str, f64)| OperatorMetric { node, name: name.to_owned(), value };
                subtask.current.metrics.operators = [
                    (1, "numRecordsIn", 1.0),
                    (2, "numRecordsIn", 2.0),
                    // Of the plugin.
                    (1, "numRecordsIn", 3.0),
                    (1, "a.b", 4.0),
                    (1, "a_b", 5.0),
                    (1, "a-b", 6.0),
                    (1, "a.b", 7.0),
                ]
                .map(metric)
                .into();
            }
        }
        assert!(job.vertices.iter().any(|vertex| 1 < vertex.subtasks.len()));
        let text = text(&[], &[job], &[], 0);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let series: BTreeSet<&str> = samples.iter().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
        assert_eq!(series.len(), samples.len(), "{text}");
        for (labels, value) in [
            (",operator_name=\"Map\",operator_id=\"1\"} 1", "numRecordsIn"),
            (",operator_name=\"Map\",operator_id=\"2\"} 2", "numRecordsIn"),
            (",operator_id=\"1\",metric=\"numRecordsIn\",occurrence=\"2\"} 3", "numRecordsIn"),
            (",operator_id=\"1\"} 4", "a_b"),
            (",operator_id=\"1\",metric=\"a_b\",occurrence=\"2\"} 5", "a_b"),
        ] {
            let name = format!("flink_taskmanager_job_task_operator_{value}{{");
            assert!(samples.iter().any(|line| line.starts_with(&name) && line.ends_with(labels)), "{labels}: {text}");
        }
    }

    #[test]
    fn labels_are_escaped_and_names_reduced() {
        let mut samples = Samples::new();
        samples.insert(
            format!("m_{}", sanitized("a-b.c")),
            vec![(vec![("job_name", "say \"hi\"\\\n".to_owned())], 1.5), (Vec::new(), 2.0)],
        );
        assert_eq!(
            render(&samples),
            "# TYPE m_a_b_c gauge\nm_a_b_c{job_name=\"say \\\"hi\\\"\\\\\\n\"} 1.5\nm_a_b_c 2\n"
        );
    }
}
