//! Metrics of jobs of real processes: the endpoint, its text, `tbccl top`, and the pages that name metrics.

mod client;
mod endpoint;
mod job;
mod openmetrics;
mod pages;
mod roles;
mod top;
