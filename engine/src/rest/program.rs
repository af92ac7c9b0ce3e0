//! What a running job was made of: its JobGraph, its plugin and its artifacts, as they were submitted,
//! so that a client can compare another version with them, and bring them back.

use std::sync::Arc;

use axum::{extract::State, http::header, response::IntoResponse};

use super::{RestState, error::RestError, request::Params, unexpected};
use crate::{
    base::ids::JobId,
    graph::{job_graph::JobGraph, job_graph_codec},
    protocol::dispatcher::{DispatcherRequest, DispatcherResponse},
};

const BINARY: &str = "application/octet-stream";

async fn graph_of(state: &RestState, job: JobId) -> Result<JobGraph, RestError> {
    match state.request(DispatcherRequest::JobGraph(job)).await? {
        DispatcherResponse::JobGraph(job_graph) => Ok(*job_graph),
        other => Err(unexpected(&other)),
    }
}

pub(crate) async fn job_graph(
    State(state): State<Arc<RestState>>,
    params: Params,
) -> Result<impl IntoResponse, RestError> {
    let job_graph = graph_of(&state, params.path_as("jobid")?).await?;
    let encoded = job_graph_codec::encode(&job_graph).map_err(|error| RestError::internal(error.to_string()))?;
    Ok(([(header::CONTENT_TYPE, BINARY)], encoded))
}

pub(crate) async fn plugin(
    State(state): State<Arc<RestState>>,
    params: Params,
) -> Result<impl IntoResponse, RestError> {
    let job_graph = graph_of(&state, params.path_as("jobid")?).await?;
    let blobs = Arc::clone(&state.services.blobs);
    let content = state.blocking(move || blobs.get(job_graph.program.plugin)).await?;
    Ok(([(header::CONTENT_TYPE, BINARY)], content))
}

pub(crate) async fn artifact(
    State(state): State<Arc<RestState>>,
    params: Params,
) -> Result<impl IntoResponse, RestError> {
    let job = params.path_as("jobid")?;
    let name = params.path("name");
    let artifacts = graph_of(&state, job).await?.artifacts;
    let Some(artifact) = artifacts.iter().find(|artifact| artifact.name == name) else {
        return Err(RestError::not_found(format!("job {job} has no artifact \"{name}\"")));
    };
    let (blobs, digest) = (Arc::clone(&state.services.blobs), artifact.digest);
    let content = state.blocking(move || blobs.get(digest)).await?;
    Ok(([(header::CONTENT_TYPE, BINARY)], content))
}
