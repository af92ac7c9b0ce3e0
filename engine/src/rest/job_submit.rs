//! `POST /jobs`: a JobGraph with its plugins and artifacts, as one multipart body.
//!
//! Every part is read and checked before the first byte is stored, and what was
//! stored is released again if the Dispatcher refuses the job. The settings that
//! guard this machine and its process are the server's, whatever the JobGraph says.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{
        Multipart, State,
        multipart::{MultipartError, MultipartRejection},
    },
    http::StatusCode,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{RestState, UPLOAD_WAIT_MAX, error::RestError, job_check};
use crate::{
    base::{ids::BlobDigest, option_scope::Scope},
    graph::{job_graph::JobGraph, job_graph_codec},
};

/// Parts of one body.
const PARTS_MAX: usize = 64;
/// Bytes of the part `request`.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// One part of a multipart body.
pub(crate) struct Part {
    /// Its field name.
    pub(crate) name: String,
    /// The name it was sent under; only compared and shown.
    pub(crate) file_name: Option<String>,
    pub(crate) content: Bytes,
}

/// Lets a few uploads in at a time, so that their bodies fit into memory.
pub(crate) async fn upload_permit(state: &RestState) -> Result<SemaphorePermit<'_>, RestError> {
    permit_within(&state.uploads, UPLOAD_WAIT_MAX).await
}

async fn permit_within(uploads: &Semaphore, wait: Duration) -> Result<SemaphorePermit<'_>, RestError> {
    match tokio::time::timeout(wait, uploads.acquire()).await {
        Ok(permit) => Ok(permit.expect("the semaphore is never closed")),
        Err(_) => Err(RestError::new(
            StatusCode::TOO_MANY_REQUESTS,
            "other plugins are being taken in at the moment; try again",
        )),
    }
}

fn multipart_error(error: &MultipartError) -> RestError {
    RestError::new(error.status(), format!("the multipart body cannot be read: {}", error.body_text()))
}

/// Reads all parts; the router limits the length of the whole body.
pub(crate) async fn read_parts(multipart: Result<Multipart, MultipartRejection>) -> Result<Vec<Part>, RestError> {
    let mut multipart = multipart
        .map_err(|error| RestError::bad_request(format!("a multipart body is expected: {}", error.body_text())))?;
    let mut parts = Vec::new();
    while let Some(field) = multipart.next_field().await.map_err(|error| multipart_error(&error))? {
        if parts.len() == PARTS_MAX {
            return Err(RestError::bad_request(format!("the body has more than {PARTS_MAX} parts")));
        }
        let name = field.name().unwrap_or_default().to_owned();
        let file_name = field.file_name().map(str::to_owned);
        let content = field.bytes().await.map_err(|error| multipart_error(&error))?;
        parts.push(Part { name, file_name, content });
    }
    Ok(parts)
}

/// Part `request`; fields that are not known are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SubmitRequest {
    job_graph_file_name: Option<String>,
    #[serde(default)]
    job_jar_file_names: Vec<String>,
    #[serde(default)]
    job_artifact_file_names: Vec<ArtifactFile>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactFile {
    entry_name: String,
    file_name: String,
}

/// A submission whose parts are all there and fit together.
struct Submission {
    job_graph: JobGraph,
    plugins: Vec<(String, Bytes)>,
    artifacts: Vec<Bytes>,
}

pub(crate) async fn submit(
    State(state): State<Arc<RestState>>,
    multipart: Result<Multipart, MultipartRejection>,
) -> Result<(StatusCode, Json<Value>), RestError> {
    state.check_submission_enabled()?;
    let _permit = upload_permit(&state).await?;
    let parts = read_parts(multipart).await?;
    let mut submission = assemble(&parts)?;
    remove_owner_settings(&mut submission.job_graph);
    check(&state, &submission.job_graph)?;
    let job_graph = submission.job_graph.clone();
    state.blocking(move || job_check::check_access(&job_graph)).await?;
    for (name, content) in submission.plugins.clone() {
        let programs = Arc::clone(&state.services.programs);
        state.blocking(move || programs.admit(&content, &name)).await?;
    }
    let job = submission.job_graph.job_id;
    let blobs: Vec<Bytes> =
        submission.plugins.into_iter().map(|(_, content)| content).chain(submission.artifacts).collect();
    state.submit(submission.job_graph, blobs).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({ "jobUrl": format!("/jobs/{job}") }))))
}

/// Forgets what the job says of settings that are the owner's: for what a job does not say, the JobMaster takes the
/// cluster's settings.
pub(crate) fn remove_owner_settings(job_graph: &mut JobGraph) {
    job_graph.configuration.remove(|key| Scope::of(key) == Scope::Owner);
}

/// Checks a JobGraph against all limits and the grants of the server; names every problem.
pub(crate) fn check(state: &RestState, job_graph: &JobGraph) -> Result<(), RestError> {
    let mut problems = job_check::problems(job_graph);
    problems.extend(job_check::ungranted(job_graph, &state.services.configuration));
    problems.extend(job_check::ungranted_snapshots(job_graph, &state.services.configuration));
    if problems.is_empty() {
        return Ok(());
    }
    Err(RestError { status: StatusCode::BAD_REQUEST, messages: problems, code: None })
}

fn assemble(parts: &[Part]) -> Result<Submission, RestError> {
    let request = parts
        .iter()
        .find(|part| part.name == "request")
        .ok_or_else(|| RestError::bad_request("part \"request\" is missing"))?;
    if REQUEST_BYTES_MAX < request.content.len() {
        return Err(RestError::bad_request(format!("part \"request\" is longer than {REQUEST_BYTES_MAX} bytes")));
    }
    let request: SubmitRequest = serde_json::from_slice(&request.content)
        .map_err(|error| RestError::bad_request(format!("part \"request\" cannot be read: {error}")))?;
    let file = |field: &str, name: &str| {
        let mut named = parts.iter().filter(|part| part.file_name.as_deref() == Some(name));
        match (named.next(), named.next()) {
            (Some(part), None) => Ok(part.content.clone()),
            (None, _) => Err(RestError::bad_request(format!("{field}: no file \"{name}\" was uploaded"))),
            (Some(_), Some(_)) => Err(RestError::bad_request(format!("{field}: \"{name}\" was uploaded twice"))),
        }
    };
    let graph_name = request
        .job_graph_file_name
        .ok_or_else(|| RestError::bad_request("part \"request\" has no field jobGraphFileName"))?;
    let job_graph = job_graph_codec::decode(&file("jobGraphFileName", &graph_name)?)
        .map_err(|error| RestError::bad_request(format!("jobGraphFileName: \"{graph_name}\": {error}")))?;
    let mut plugins = Vec::new();
    for name in request.job_jar_file_names {
        let content = file("jobJarFileNames", &name)?;
        plugins.push((name, content));
    }
    let mut artifacts = Vec::new();
    for artifact in request.job_artifact_file_names {
        let content = file("jobArtifactFileNames", &artifact.file_name)?;
        let declared = job_graph.artifacts.iter().find(|declared| declared.name == artifact.entry_name);
        match declared {
            Some(declared) if declared.digest == digest(&content) => artifacts.push(content),
            Some(_) => {
                return Err(RestError::bad_request(format!(
                    "artifact \"{}\" is not the file that the job graph means: its SHA-256 differs",
                    artifact.entry_name
                )));
            }
            None => {
                return Err(RestError::bad_request(format!(
                    "the job graph knows no artifact \"{}\"",
                    artifact.entry_name
                )));
            }
        }
    }
    let uploaded: BTreeSet<BlobDigest> =
        plugins.iter().map(|(_, content)| digest(content)).chain(artifacts.iter().map(|a| digest(a))).collect();
    let needed = std::iter::once(("plugin", job_graph.program.plugin_name.as_str(), job_graph.program.plugin))
        .chain(job_graph.artifacts.iter().map(|artifact| ("artifact", artifact.name.as_str(), artifact.digest)));
    for (kind, name, needed) in needed {
        if !uploaded.contains(&needed) {
            return Err(RestError::bad_request(format!(
                "the job graph needs the {kind} \"{name}\" with SHA-256 {needed}, which was not uploaded"
            )));
        }
    }
    Ok(Submission { job_graph, plugins, artifacts })
}

/// The name of a blob.
pub(crate) fn digest(content: &[u8]) -> BlobDigest {
    BlobDigest::from_bytes(Sha256::digest(content).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_upload_waits_for_its_turn_before_it_is_refused() {
        let uploads = Semaphore::new(1);
        let held = permit_within(&uploads, Duration::ZERO).await.expect("the first one");
        let error = permit_within(&uploads, Duration::ZERO).await.expect_err("no place");
        assert_eq!(error.status, StatusCode::TOO_MANY_REQUESTS);
        let (waited, ()) = tokio::join!(permit_within(&uploads, UPLOAD_WAIT_MAX), async { drop(held) });
        assert!(waited.is_ok());
    }
}
