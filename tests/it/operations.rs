//! Operating an agent: what it does when it is told to, and what it tells who asks.

mod reload;
