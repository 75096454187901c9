# For find_package(mzcache CONFIG): the target mzcache::mzcache, a static library. Lies beside the
# archive as linker/install puts it: PREFIX/lib/cmake/mzcache, PREFIX/lib, PREFIX/include.
#
# Programs that link it drop what they do not call with -Wl,--gc-sections, which the target adds.

get_filename_component(mzcache_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT EXISTS "${mzcache_prefix}/lib/libmzcache.a")
    set(mzcache_FOUND FALSE)
    set(mzcache_NOT_FOUND_MESSAGE "${mzcache_prefix}/lib/libmzcache.a is missing")
    return()
endif()

if(NOT TARGET mzcache::mzcache)
    add_library(mzcache::mzcache STATIC IMPORTED)
    set_target_properties(mzcache::mzcache PROPERTIES
        IMPORTED_LOCATION "${mzcache_prefix}/lib/libmzcache.a"
        INTERFACE_INCLUDE_DIRECTORIES "${mzcache_prefix}/include")
    target_link_options(mzcache::mzcache INTERFACE "LINKER:--gc-sections")
    # An archive with the feature host calls the C library and the dynamic linker; a bare one has
    # the empty file beside it.
    include("${CMAKE_CURRENT_LIST_DIR}/mzcache-libs.cmake")
endif()
