// A failure in a process without a C++ library. Nothing could catch an exception, so the library prints one
// line with the reason and aborts the process. With a second argument, prints the library's name and version.

#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments) {
    void *library = dlopen(count > 1 ? arguments[1] : "", RTLD_NOW | RTLD_GLOBAL);
    int (*rank)(void *, int *) = library ? (int (*)(void *, int *))dlsym(library, "MPI_Comm_rank") : NULL;
    if (!rank) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int found = 0;
    if (count > 2) {
        int (*get_version)(char *, int *) = (int (*)(char *, int *))dlsym(library, "MPI_Get_library_version");
        char version[256] = "";
        int length = 0;
        if (!get_version || get_version(version, &length) != 0) return 1;
        printf("%d %s\n", length, version);
        return 0;
    }
    rank(dlsym(library, "ompi_mpi_comm_world"), &found);
    printf("it went on\n");
    return 0;
}
