import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, whose permissions Java sets. Where Hadoop has no native library, as with PySpark of a wheel, it
 * starts the program {@code chmod} for each file, each checksum file and each directory that it makes.
 */
public final class LocalFiles extends LocalFileSystem {
    /** Made by Hadoop. */
    public LocalFiles() {
        super(new Raw());
    }

    private static final class Raw extends RawLocalFileSystem {
        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            String symbols = permission.getUserAction().SYMBOL
                    + permission.getGroupAction().SYMBOL
                    + permission.getOtherAction().SYMBOL;
            Files.setPosixFilePermissions(pathToFile(path).toPath(), PosixFilePermissions.fromString(symbols));
        }
    }

    /** The same for streams' checkpoints, which Spark writes through Hadoop's other interface. */
    public static final class OfContext extends ChecksumFs {
        /** Made by Hadoop. */
        public OfContext(URI address, Configuration configuration) throws IOException, URISyntaxException {
            super(new RawOfContext(configuration));
        }
    }

    private static final class RawOfContext extends DelegateToFileSystem {
        RawOfContext(Configuration configuration) throws IOException, URISyntaxException {
            super(FsConstants.LOCAL_FS_URI, new Raw(), configuration, FsConstants.LOCAL_FS_URI.getScheme(), false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1; // as in Hadoop's own
        }

        @Override
        public boolean isValidName(String name) {
            return true; // as in Hadoop's own
        }
    }
}
