//! The formats of archives.

/// The formats, by the end of a file name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `.tar`
    Tar,
    /// `.tar.gz`, `.tgz`
    TarGz,
    /// `.tar.xz`
    TarXz,
    /// `.tar.zst`
    TarZst,
    /// `.tar.bz2`
    TarBz2,
    /// `.zip`
    Zip,
}

impl Format {
    /// Returns the format of a file of this name, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Self> {
        const ENDS: [(&str, Format); 7] = [
            (".tar.gz", Format::TarGz),
            (".tgz", Format::TarGz),
            (".tar.xz", Format::TarXz),
            (".tar.zst", Format::TarZst),
            (".tar.bz2", Format::TarBz2),
            (".tar", Format::Tar),
            (".zip", Format::Zip),
        ];
        let name = name.to_ascii_lowercase();
        ENDS.into_iter().find(|(end, _)| name.ends_with(end)).map(|(_, format)| format)
    }

    /// Returns the name of the format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tar => "tar",
            Self::TarGz => "tar.gz",
            Self::TarXz => "tar.xz",
            Self::TarZst => "tar.zst",
            Self::TarBz2 => "tar.bz2",
            Self::Zip => "zip",
        }
    }
}
