# For find_package(mzcache CONFIG): the target mzcache::mzcache, the archive, or the shared object
# where there is no archive. Lies beside it as linker/install puts it: PREFIX/lib/cmake/mzcache,
# PREFIX/lib, PREFIX/include.
#
# Programs that link the archive drop what they do not call with -Wl,--gc-sections, which the target
# adds.

get_filename_component(mzcache_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(mzcache_archive "${mzcache_prefix}/lib/libmzcache.a")
set(mzcache_object "${mzcache_prefix}/lib/libmzcache.so")

if(NOT EXISTS "${mzcache_archive}" AND NOT EXISTS "${mzcache_object}")
    set(mzcache_FOUND FALSE)
    set(mzcache_NOT_FOUND_MESSAGE "${mzcache_archive} and libmzcache.so are missing")
    return()
endif()

if(NOT TARGET mzcache::mzcache)
    if(EXISTS "${mzcache_archive}")
        add_library(mzcache::mzcache STATIC IMPORTED)
        set_target_properties(mzcache::mzcache PROPERTIES IMPORTED_LOCATION "${mzcache_archive}")
        target_link_options(mzcache::mzcache INTERFACE "LINKER:--gc-sections")
    else()
        add_library(mzcache::mzcache SHARED IMPORTED)
        # By its own name, which programs ask for at run time.
        set_target_properties(mzcache::mzcache PROPERTIES IMPORTED_LOCATION "${mzcache_object}")
    endif()
    set_target_properties(mzcache::mzcache PROPERTIES
        INTERFACE_INCLUDE_DIRECTORIES "${mzcache_prefix}/include")
    # An archive with the feature host calls the C library and the dynamic linker; a bare one and a
    # shared object have the empty file beside it.
    include("${CMAKE_CURRENT_LIST_DIR}/mzcache-libs.cmake")
endif()
