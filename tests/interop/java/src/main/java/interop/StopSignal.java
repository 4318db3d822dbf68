package interop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** Asks a running command to finish. */
final class StopSignal {
    private final CountDownLatch raised = new CountDownLatch(1);

    void raise() {
        raised.countDown();
    }

    boolean waitMillis(long milliseconds) throws InterruptedException {
        return raised.await(milliseconds, TimeUnit.MILLISECONDS);
    }
}
