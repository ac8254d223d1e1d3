//! The commands that operate a cluster through its gateways: [`drain`] and [`mod@top`].

pub mod drain;
mod gateway;
mod histogram;
mod page;
mod terminal;
pub mod top;
