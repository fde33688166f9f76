/* A verbs library that breaks one rule: the software device, with a fault of the name in TBCCL_TEST_FAULT.
 *
 * Functions that are not here come from the software device, which this library is linked with. Those of the
 * operations table are replaced when a device is opened. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

#define SLOTS 65536

static int (*real_poll)(struct ibv_cq *, int, struct ibv_wc *);
static int (*real_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
static int (*real_receive)(struct ibv_qp *, struct ibv_recv_wr *, struct ibv_recv_wr **);

/* Number of opened devices, queue pairs and regions; whether a queue pair was connected, or waits. */
static int opened, pairs, regions, connected, is_stalled;
/* Addresses of posted receives, by their identifiers. */
static uint64_t receives[SLOTS];
/* A send that is kept back. */
static struct ibv_send_wr kept;
static struct ibv_sge kept_sge;
static struct ibv_qp *kept_by;

static int is(const char *fault)
{
    const char *chosen = getenv("TBCCL_TEST_FAULT");
    return chosen && strcmp(chosen, fault) == 0;
}

static void *real(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen(SOFTRDMA, RTLD_NOW);
    return dlsym(library, name);
}

static void crash(void)
{
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *found)
{
    if (kept_by) {
        struct ibv_send_wr *bad;
        struct ibv_qp *by = kept_by;
        kept_by = NULL;
        real_send(by, &kept, &bad);
    }
    if (is("ghost") && most > 0) {
        memset(found, 0, sizeof *found);
        return 1;
    }
    if (is("slow-polls"))
        usleep(50);
    int count = real_poll(cq, most, found);
    if (is("order") && count >= 2) {
        struct ibv_wc first = found[0];
        found[0] = found[1];
        found[1] = first;
    }
    for (int i = 0; i < count; i++) {
        if (!(found[i].opcode & IBV_WC_RECV))
            continue;
        if (is("frame-lengths"))
            found[i].byte_len = (found[i].byte_len + 4095) / 4096 * 4096;
        if (is("damage") && receives[found[i].wr_id % SLOTS])
            *(volatile unsigned char *)receives[found[i].wr_id % SLOTS] ^= 1;
        if (is("number"))
            found[i].imm_data ^= 1;
    }
    return count;
}

static int post_receive(struct ibv_qp *pair, struct ibv_recv_wr *request, struct ibv_recv_wr **bad)
{
    receives[request->wr_id % SLOTS] = request->num_sge ? request->sg_list[0].addr : 0;
    return real_receive(pair, request, bad);
}

static int post_send(struct ibv_qp *pair, struct ibv_send_wr *request, struct ibv_send_wr **bad)
{
    uint32_t length = request->num_sge ? request->sg_list[0].length : 0;
    if (is("lost-1000") && length == 1000)
        return 0;
    if (is("stall") && length == 2000)
        is_stalled = 1;
    if (is_stalled && length == 64)
        return 0;
    if (is("crash-48") && length == 48)
        crash();
    if (is("lost-pieces") && length == 131072 && request->wr_id >= 20)
        return 0;
    if (is("signals"))
        request->send_flags |= IBV_SEND_SIGNALED;
    if (is("lazy-inline") && (request->send_flags & IBV_SEND_INLINE)) {
        kept = *request;
        kept_sge = request->sg_list[0];
        kept.sg_list = &kept_sge;
        kept.send_flags &= ~(unsigned)IBV_SEND_INLINE;
        kept_by = pair;
        return 0;
    }
    return real_send(pair, request, bad);
}

static int arm(struct ibv_cq *cq, int solicited)
{
    (void)cq;
    (void)solicited;
    return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct ibv_context *(*open)(struct ibv_device *) = real("ibv_open_device");
    if (is("hang"))
        for (;;)
            pause();
    if (is("leak") && ++opened > 9) {
        errno = ENODATA;
        return NULL;
    }
    struct ibv_context *context = open(device);
    if (!context)
        return NULL;
    real_poll = context->ops.poll_cq;
    real_send = context->ops.post_send;
    real_receive = context->ops.post_recv;
    context->ops.poll_cq = poll_cq;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_receive;
    if (is("silent"))
        context->ops.req_notify_cq = arm;
    return context;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attributes)
{
    int (*query)(struct ibv_context *, struct ibv_device_attr *) = real("ibv_query_device");
    return is("no-limits") ? EOPNOTSUPP : query(context, attributes);
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attributes)
{
    int (*query)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *) = real("ibv_query_port");
    if (is("slow-port"))
        usleep(10000);
    return query(context, port, attributes);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *domain, struct ibv_qp_init_attr *wanted)
{
    struct ibv_qp *(*create)(struct ibv_pd *, struct ibv_qp_init_attr *) = real("ibv_create_qp");
    if (is("no-pairs") || (is("few-pairs") && pairs >= 4)) {
        errno = is("no-pairs") ? EOPNOTSUPP : EBUSY;
        return NULL;
    }
    struct ibv_qp *pair = create(domain, wanted);
    if (pair)
        pairs++;
    return pair;
}

int ibv_destroy_qp(struct ibv_qp *pair)
{
    int (*destroy)(struct ibv_qp *) = real("ibv_destroy_qp");
    pairs--;
    return destroy(pair);
}

int ibv_query_qp(struct ibv_qp *pair, struct ibv_qp_attr *attributes, int mask, struct ibv_qp_init_attr *init)
{
    int (*query)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
    query = real("ibv_query_qp");
    int result = query(pair, attributes, mask, init);
    if (is("shallow"))
        init->cap.max_recv_wr = attributes->cap.max_recv_wr = 100;
    return result;
}

int ibv_modify_qp(struct ibv_qp *pair, struct ibv_qp_attr *attributes, int mask)
{
    int (*modify)(struct ibv_qp *, struct ibv_qp_attr *, int) = real("ibv_modify_qp");
    if (is("no-rights") && !(mask & IBV_QP_PORT) && (mask & IBV_QP_ACCESS_FLAGS))
        return EINVAL;
    if (is("no-reset") && (mask & IBV_QP_STATE) && attributes->qp_state == IBV_QPS_RESET)
        return EINVAL;
    if ((mask & IBV_QP_STATE) && attributes->qp_state == IBV_QPS_RTR) {
        connected = 1;
        if (is("no-link-local") && attributes->ah_attr.grh.sgid_index == 0)
            return EINVAL;
    }
    return modify(pair, attributes, mask);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *domain, void *address, size_t length, int access)
{
    struct ibv_mr *(*reg)(struct ibv_pd *, void *, size_t, int) = real("ibv_reg_mr");
    uint64_t first = (uintptr_t)address, line = (uint64_t)1 << 32;
    if (is("crash"))
        crash();
    if ((is("late") && connected) || (is("shared") && length == 1 << 20)
        || (is("line") && (first % line == 0 || (first + length) % line == 0))) {
        errno = EFAULT;
        return NULL;
    }
    if (is("few-regions") && regions >= 50) {
        errno = ENOMEM;
        return NULL;
    }
    struct ibv_mr *region = reg(domain, address, length, access);
    if (region)
        regions++;
    return region;
}

int ibv_dereg_mr(struct ibv_mr *region)
{
    int (*dereg)(struct ibv_mr *) = real("ibv_dereg_mr");
    regions--;
    return dereg(region);
}
