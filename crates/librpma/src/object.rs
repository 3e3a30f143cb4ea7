//! Memory of an object's own, from the C library's heap, which may be at its end; and the pointers
//! that C hands over.

use std::alloc::{Layout, alloc, dealloc};

use crate::codes::{INVAL, NOMEM, Result};

/// A new object; `NOMEM` where there is no memory for it.
///
/// `T` is no type without a size: such an allocation has no meaning.
pub fn make<T>(value: T) -> Result<*mut T> {
    const { assert!(size_of::<T>() != 0) };
    // SAFETY: the layout has a size.
    let at = unsafe { alloc(Layout::new::<T>()) }.cast::<T>();
    if at.is_null() {
        return Err(NOMEM);
    }
    // SAFETY: it is there, large enough and aligned, and no other thread's.
    unsafe { at.write(value) };
    Ok(at)
}

/// Ends an object.
///
/// # Safety
///
/// It came from [`make`], and no thread uses it any more.
pub unsafe fn end<T>(object: *mut T) {
    // SAFETY: as the caller says.
    unsafe {
        object.drop_in_place();
        dealloc(object.cast(), Layout::new::<T>());
    }
}

/// The object behind a pointer; `INVAL` for NULL.
///
/// # Safety
///
/// The pointer is NULL, or leads to a `T`. As long as the result is used no thread ends or changes
/// that, but for what it lets be changed.
pub unsafe fn of<'a, T>(object: *const T) -> Result<&'a T> {
    // SAFETY: as the caller says.
    unsafe { object.as_ref() }.ok_or(INVAL)
}

/// Gives a value to an out parameter; `INVAL` for NULL.
///
/// # Safety
///
/// The pointer is NULL, or there is room for a `T`.
pub unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(INVAL);
    }
    // SAFETY: as the caller says.
    unsafe { out.write(value) };
    Ok(())
}

/// The object that a variable of the program's names, which has none from now on; `INVAL` for NULL,
/// and NULL where it had none.
///
/// # Safety
///
/// The pointer is NULL, or leads to such a variable.
pub unsafe fn take<T>(variable: *mut *mut T) -> Result<*mut T> {
    // SAFETY: as the caller says.
    let variable = unsafe { variable.as_mut() }.ok_or(INVAL)?;
    Ok(std::mem::replace(variable, std::ptr::null_mut()))
}
