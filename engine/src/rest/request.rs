//! Reading what is in a request: path parameters, query and JSON bodies.

use std::str::FromStr;

use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::error::RestError;

/// Path and query parameters of a request, decoded.
pub(crate) struct Params {
    path: Vec<(String, String)>,
    query: Vec<(String, String)>,
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let path = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|error| RestError::bad_request(error.body_text()))?;
        let path = path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let query = axum::extract::Query::from_request_parts(parts, state)
            .await
            .map_err(|error| RestError::bad_request(error.body_text()))?;
        Ok(Self { path, query: query.0 })
    }
}

impl Params {
    /// The text of a path parameter of the route.
    pub(crate) fn path(&self, name: &str) -> &str {
        self.path
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .expect("the route declares the parameter")
    }

    /// A path parameter of another type; malformed text is the client's fault (400).
    pub(crate) fn path_as<T: FromStr>(&self, name: &str) -> Result<T, RestError>
    where
        T::Err: std::fmt::Display,
    {
        self.path(name).parse().map_err(|error: T::Err| {
            RestError::bad_request(format!("path parameter \"{name}\" is \"{}\": {error}", self.path(name)))
        })
    }

    /// The first value of a query parameter.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All comma-separated values of a query parameter, repeated or not.
    pub(crate) fn query_list(&self, name: &str) -> Vec<&str> {
        self.query
            .iter()
            .filter(|(known, _)| known == name)
            .flat_map(|(_, value)| value.split(','))
            .map(str::trim)
            .filter(|value| !value.is_empty())
            .collect()
    }

    /// The first value of a query parameter in another type.
    pub(crate) fn query_as<T: FromStr>(&self, name: &str) -> Result<Option<T>, RestError>
    where
        T::Err: std::fmt::Display,
    {
        self.query(name).map(|value| value.parse()).transpose().map_err(|error: T::Err| {
            RestError::bad_request(format!(
                "query parameter \"{name}\" is \"{}\": {error}",
                self.query(name).unwrap_or_default()
            ))
        })
    }
}

/// A JSON body; an empty one counts as `{}`.
pub(crate) fn json_body<T: DeserializeOwned>(body: &Bytes) -> Result<T, RestError> {
    let text: &[u8] = if body.iter().all(u8::is_ascii_whitespace) { b"{}" } else { body };
    serde_json::from_slice(text).map_err(|error| RestError::bad_request(format!("the body cannot be read: {error}")))
}
