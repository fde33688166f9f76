//! Functions that a library takes from JACCL, and those that a library has.

use super::super::CommandError;
use object::{NameOrOrdinal, Object, ObjectSymbol};
use std::{collections::BTreeSet, fmt::Display, fs, path::Path};

/// Part of the name of every function of JACCL, as C++ compilers write it.
const NAMESPACE: &str = "5jaccl";

/// Stem of the file name of JACCL's library.
const STEM: &str = "libjaccl.";

/// Returns the functions that MLX's library takes from JACCL's.
///
/// A Mach-O file names the library of each function. An ELF file does not: there the namespace decides.
pub(super) fn taken_from_jaccl(mlx: &Path) -> Result<BTreeSet<String>, CommandError> {
    with_object(mlx, |file| {
        let mut taken = BTreeSet::new();
        for import in file.imports()? {
            let import = import?;
            let library = String::from_utf8_lossy(import.library());
            let Some(name) = text(&import.name()) else { continue };
            let from_jaccl = library.rsplit('/').next().is_some_and(|file| file.starts_with(STEM));
            if from_jaccl || (library.is_empty() && name.contains(NAMESPACE)) {
                taken.insert(name);
            }
        }
        Ok(taken)
    })
}

/// Returns the names that a library has for others.
pub(super) fn exported(library: &Path) -> Result<BTreeSet<String>, CommandError> {
    with_object(library, |file| {
        let mut names = BTreeSet::new();
        for export in file.exports()? {
            names.extend(text(&export?.name()));
        }
        // Some linkers leave out the table of exports where the table of symbols has all of them.
        let symbols = file.dynamic_symbols().chain(file.symbols());
        let global = symbols.filter(|symbol| symbol.is_global() && symbol.is_definition());
        names.extend(global.filter_map(|symbol| Some(symbol.name().ok()?.to_owned())));
        Ok(names)
    })
}

/// Returns a name; `None` for a number in the place of one.
fn text(name: &NameOrOrdinal<impl AsRef<[u8]>>) -> Option<String> {
    match name {
        NameOrOrdinal::Name(name) => Some(String::from_utf8_lossy(name.as_ref()).into_owned()),
        NameOrOrdinal::Ordinal(_) => None,
    }
}

/// Reads a library.
fn with_object<T>(
    path: &Path,
    read: impl FnOnce(&object::File<'_>) -> object::Result<T>,
) -> Result<T, CommandError> {
    let failed = |why: &dyn Display| CommandError::new(format_args!("{}: {why}", path.display()));
    let bytes = fs::read(path).map_err(|error| failed(&error))?;
    let result = object::File::parse(&*bytes).and_then(|file| read(&file));
    result.map_err(|error| failed(&format_args!("it is not a library that can be read here: {error}")))
}
