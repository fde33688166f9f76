//! Metrics of jobs of real processes: the endpoint, its text, and the page that names metrics.

mod client;
mod endpoint;
mod job;
mod openmetrics;
mod pages;
mod roles;
