/* floor: the least that a server can do for `mqload send`, so that its figures say what sockets cost on a machine.
 *
 *   cc -O2 -o floor floor.c
 *   floor    listens on a free port of 127.0.0.1, which it prints, until it is killed
 *
 * It finds each frame, copies it into a buffer that nobody reads, and answers it with SUCCESS: no topic, queue, index,
 * file or check. One thread, epoll, one read and one write for what a connection has sent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_CONNECTIONS = 4096, LOG_BYTES = 64 << 20, FRAME_BYTES = 8192, BUFFER_BYTES = 1 << 20 };
static struct { char *in; size_t length; } connections[MOST_CONNECTIONS];
static char log_file[LOG_BYTES], answers[BUFFER_BYTES];
static size_t log_end;

/* Answer all whole frames of a connection by one write; 0 when it has ended. */
static int serve(int fd) {
  char *in = connections[fd].in; size_t begin = 0, out = 0;
  ssize_t n = read(fd, in + connections[fd].length, BUFFER_BYTES - connections[fd].length - 1);
  if (n <= 0) return 0;
  size_t length = connections[fd].length + n;
  for (uint32_t size; length - begin >= 8 && out + 512 < sizeof answers; begin += 4 + size) {
    memcpy(&size, in + begin, 4); size = ntohl(size);
    if (size > FRAME_BYTES) return 0;
    if (length - begin - 4 < size) break;
    if (log_end + size > LOG_BYTES) log_end = 0;
    memcpy(log_file + log_end, in + begin + 4, size); log_end += size;
    char *opaque = memmem(in + begin, size, "\"opaque\":", 9), *answer = answers + out + 8;
    int header = sprintf(answer, "{\"code\":0,\"extFields\":{\"queueId\":\"0\",\"msgId\":\"7F00000100002A9F%016zX\",\"queueOffset\":\"0\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":%lu,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":407}", log_end, opaque ? strtoul(opaque + 9, 0, 10) : 0);
    uint32_t whole = htonl(4 + header), of_header = htonl(header);
    memcpy(answers + out, &whole, 4); memcpy(answers + out + 4, &of_header, 4); out += 8 + header;
  }
  memmove(in, in + begin, connections[fd].length = length - begin);
  return out == 0 || write(fd, answers, out) == (ssize_t)out;
}

int main(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}; socklen_t size = sizeof at;
  int listener = socket(AF_INET, SOCK_STREAM, 0), loop = epoll_create1(0), one = 1;
  if (bind(listener, (void *)&at, size) || listen(listener, 1024) || getsockname(listener, (void *)&at, &size)) return 1;
  printf("%d\n", ntohs(at.sin_port)); fflush(stdout);
  struct epoll_event events[512], event = {.events = EPOLLIN, .data.fd = listener};
  epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event);
  for (;;)
    for (int n = epoll_wait(loop, events, 512, -1), k = 0; k < n; k++) {
      int fd = events[k].data.fd;
      if (fd != listener) { if (!serve(fd)) close(fd); continue; }
      if ((fd = accept(listener, 0, 0)) < 0 || fd >= MOST_CONNECTIONS) { close(fd); continue; }
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      if (!connections[fd].in) connections[fd].in = malloc(BUFFER_BYTES);
      connections[fd].length = 0; event = (struct epoll_event){.events = EPOLLIN, .data.fd = fd};
      epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event);
    }
}
