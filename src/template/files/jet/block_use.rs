//! The code that uses a block, and the parameters of its macro.

use super::expression::GIVEN;

/// The name of `.` within a block.
pub(in crate::template::files) const DOT: &str = "ensign_dot";
/// The name of the arguments of a block.
pub(super) const ARGUMENTS: &str = "ensign_arguments";
/// The name of the text between `content` and `end` where a block is used.
pub(super) const CONTENT: &str = "ensign_content";

/// The code that uses a block, up to the argument for the content.
pub(super) struct BlockUse {
    pub(super) start: String,
    pub(super) dot: String,
}

impl BlockUse {
    pub(super) fn with_content(&self, content: &str) -> String {
        format!("{}{content}) }}}}", self.start)
    }
}

/// The parameters of a block's macro, in the order of `invoke` in [`super::macros`].
pub(super) fn block_parameters() -> String {
    format!("({DOT}, {GIVEN}, {ARGUMENTS}, {CONTENT})")
}
